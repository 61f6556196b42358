// quintet bench engine: runs the load of `bench serve` on an engine in this process, without a
// network.
#include <memory>

#include "tools/conditions.h"
#include "tools/load/engine_target.h"
#include "tools/load/flags.h"

namespace quintet {
namespace {

struct BenchEngineFlags {
  ModelFlags model;
  LoadFlags load;
};

// Maximum length of the engine's queue in requests: so large that the engine rejects no request.
// Overload is measured with `bench serve`, because handling overload is the server's task.
constexpr int64_t kQueue = 1 << 20;

int Run(BenchEngineFlags flags) {
  if (absl::Status status = ValidateLoad(&flags.load); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  int exit_code = kExitDone;
  const SessionNeeds needs = {.kind = RequestKind::kGenerate,
                              .tokenizer = flags.load.shape.lines.empty()
                                               ? TokenizerNeed::kIfThere
                                               : TokenizerNeed::kRequired,
                              .queue = kQueue,
                              .warm_up = WarmUpShapes::kAll,
                              .decodes = true};
  std::unique_ptr<Session> session = OpenSession(flags.model, needs, &exit_code);
  if (session == nullptr) return exit_code;
  flags.load.shape.vocab = session->config.vocab;
  EngineTarget target(session.get(), !flags.load.unary);
  return RunAndReport(flags.load, &target, SessionConditions(*session),
                      {{"max_running", session->model->limits().max_step_sequences}});
}

}  // namespace

void AddBenchEngineCommand(CommandLine& line) {
  auto flags = std::make_shared<BenchEngineFlags>();
  CLI::App* command = line.AddCommand(
      {.name = "bench engine",
       .description = "Measure the engine in this process under the load of bench serve.",
       .example = "quintet bench engine --model DIR --threads 1 --concurrency 32 --requests 200 "
                  "--output-tokens 16:128",
       .details = "Equal load flags and an equal --seed produce the same requests as bench serve, "
                  "so the difference is\nthe overhead of the server."},
      [flags] { return Run(*flags); });
  AddModelFlags(line, command, &flags->model);
  AddIgnoreGenerationFieldsFlag(command, &flags->model.ignore_generation_fields);
  AddLoadFlags(command, &flags->load);
}

}  // namespace quintet
