#include "tools/session.h"

#include <malloc.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "models/adapter_pool.h"
#include "models/checkpoint/find_model.h"
#include "spdlog/spdlog.h"
#include "tools/flag_values.h"

namespace quintet {
namespace {

// Makes glibc keep freed memory in the process. Otherwise glibc would return multi-megabyte result
// buffers to the kernel, and the page faults of every batch would cost more than the D2H copy of
// its results. Commands that use a session end after their last line, so the memory is not kept for
// long.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc's maximum
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace

std::string LimitsNote(const std::string& model, Placement placement, const LimitRequest& request) {
  const absl::StatusOr<std::string> directory = FindModel(model);
  if (!directory.ok()) return "";
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(*directory);
  const absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(&placement);
  if (!config.ok() || !device.ok()) return "";
  LoadOptions options = LoadOptionsOf(placement, *config, device->get());
  ThreadPool pool(1);
  if (!PlanMemory(*directory, request, &options, &pool).ok()) return "";
  return absl::StrCat(model, " on ", placement.device, ": ",
                      DescribeLimits(request, options, *config));
}

// The flag's adapters are named 0, 1, 2, ... in the order of the command line. Paths would not be
// unique names, because the same path may be given twice.
static void AddAdapterFlag(CLI::App* command, ModelFlags* flags) {
  const bool bench = command->get_name() == "bench";
  const auto set = [bench, flags](const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      flags->adapters.push_back({absl::StrCat(flags->adapters.size()), path});
    }
    flags->merge_adapter = !bench;
  };
  command
      ->add_option_function<std::vector<std::string>>(
          "--adapter", set,
          bench ? "LoRA adapter, in PEFT's or kohya's format, applied as by a server: not added to "
                  "the weights. Repeat the flag to use several adapters in turn."
                : "LoRA adapter for all inputs: a directory of PEFT, or a safetensors file of "
                  "kohya's format.")
      ->allow_extra_args(false)
      ->delimiter(bench ? ',' : '\0')
      ->expected(1, bench ? static_cast<int>(kMaxAdapters) : 1)
      ->type_name("PATH")
      ->group("Model");
}

void AddModelFlags(CommandLine& line, CLI::App* command, ModelFlags* flags) {
  constexpr char kGroup[] = "Model";
  AddModelArgument(line, command, &flags->model);
  AddTokenizerFlag(command, &flags->tokenizer);
  AddFollowSymlinksFlag(command, &flags->follow_symlinks);
  AddAdapterFlag(command, flags);
  AddPlacementFlags(command, &flags->placement);
  AddThreadsFlag(command, &flags->threads)->group(kGroup);
  AddEnginesFlag(command, &flags->engines)->group(kGroup);
  AddAutomaticFlag(command, "--max-running,--max-num-seqs", &flags->max_running, 4096,
                   "Maximum number of sequences decoded concurrently; each beam counts. auto: 4096 "
                   "on a GPU (GPT-2 2048, and fewer if memory is short), 64 on a CPU. Range "
                   "[1, 4096].")
      ->type_name("SEQUENCES")
      ->group(kGroup);
  command->add_option("--max-input-tokens", flags->max_input_tokens, "Maximum input length.")
      ->check(InRange(int64_t{1}, int64_t{1} << 24))
      ->type_name("TOKENS")
      ->group(kGroup);
  AddAutomaticFlag(command, "--max-batch-tokens,--max-num-batched-tokens", &flags->max_batch_tokens,
                   int64_t{1} << 24,
                   "Maximum number of tokens encoded in one batch; on a GPU also of prompt tokens "
                   "per step. auto: 16384 on a GPU (fewer if memory is short), 4096 on a CPU.")
      ->type_name("TOKENS")
      ->group(kGroup);
  AddAutomaticFlag(
      command, "--cache-memory", &flags->cache_mib, int64_t{1} << 24,
      "KV cache size. auto: room for --max-running sequences of usual length, at least "
      "1024, within the free memory. Range [1, 16777216].")
      ->type_name("MIB")
      ->group(kGroup);
  AddMaxMemoryFlag(command, &flags->max_memory_mib)->group(kGroup);
  line.AddConfigNote(command, [flags] {
    return LimitsNote(flags->model, flags->placement, LimitRequestOf(*flags));
  });
}

void AddModelArgument(CommandLine& line, CLI::App* command, std::string* model) {
  const bool positional = command->get_name() != "bench";
  line.Require(
      command
          ->add_option(positional ? "model,--model" : "--model", *model,
                       "Model: a directory with Hugging Face files, a diffusers pipeline or the "
                       "output of quintet convert; a T5 text encoder in one safetensors or GGUF "
                       "file; or the id of a model in the Hugging Face cache, with @REVISION if it "
                       "is not the main one.")
          ->type_name("MODEL")
          ->group("Model"));
}

void AddTokenizerFlag(CLI::App* command, std::string* tokenizer) {
  command
      ->add_option("--tokenizer", *tokenizer,
                   "Tokenizer: a directory, a file (tokenizer.json, spiece.model, GGUF) or a hub "
                   "id. Default: that of the model; for a text encoder of a diffusers pipeline the "
                   "folder beside it.")
      ->type_name("PATH")
      ->group("Model");
}

CLI::Option* AddFollowSymlinksFlag(CLI::App* command, bool* follow) {
  return command
      ->add_flag("--follow-symlinks", *follow,
                 "Follow all symbolic links to model files. Without it only links within a "
                 "repository's folder of the Hugging Face cache are followed.")
      ->group("Model");
}

CLI::Option* AddAutomaticFlag(CLI::App* command, const char* name, int64_t* value, int64_t most,
                              const char* help) {
  return command
      ->add_option_function<std::string>(
          name,
          [value](const std::string& text) {
            if (!absl::SimpleAtoi(text, value)) *value = 0;  // auto
          },
          help)
      ->check(AutoOrInRange(1, static_cast<uint64_t>(most)))
      ->default_str("auto");
}

CLI::Option* AddThreadsFlag(CLI::App* command, int* threads) {
  return command
      ->add_option("--threads", *threads,
                   "Number of compute threads; 0 = one per physical core available to the process, "
                   "with a GPU half of them, at most 8. "
                   "Range [0, 1024].")
      ->check(InRange(0, 1024))
      ->type_name("THREADS");
}

CLI::Option* AddEnginesFlag(CLI::App* command, int* engines) {
  return command
      ->add_option("--engines", *engines,
                   "Number of engines on a CPU, each with an equal part of the cores and of "
                   "--threads: faster where one engine cannot use all cores. They share the "
                   "weights. Range [1, 256].")
      ->check(InRange(1, 256))
      ->type_name("ENGINES");
}

void AddIgnoreGenerationFieldsFlag(CLI::App* command, bool* ignore) {
  command
      ->add_flag(kIgnoreGenerationFields, *ignore,
                 "Warn instead of rejecting a model whose generation_config.json sets fields that "
                 "change the output of transformers and that Quintet does not support.")
      ->group("Model");
}

CLI::Option* AddMaxMemoryFlag(CLI::App* command, int64_t* mib) {
  return command
      ->add_option("--max-memory", *mib,
                   "Limit for all memory of a model on its device; the KV cache gets what the rest "
                   "leaves. 0 = no limit except the free memory of a GPU.")
      ->check(InRange(int64_t{0}, int64_t{1} << 24))
      ->type_name("MIB");
}

std::unique_ptr<Session> OpenSession(const ModelFlags& flags, const SessionNeeds& needs,
                                     int* exit_code) {
  ModelFlags resolved = flags;
  if (flags.engines > 1 && !needs.replicas) {
    *exit_code = Fail(kExitUsage, absl::InvalidArgumentError("--engines: bench runs one engine"));
    return nullptr;
  }
  absl::StatusOr<std::vector<std::unique_ptr<Device>>> devices =
      OpenDevices(&resolved.placement, needs.replicas);
  if (!devices.ok()) {
    *exit_code = Fail(kExitUsage, devices.status());
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<Session>> session = LoadSession(
      resolved, needs, *std::move(devices),
      {.warn = [](absl::string_view text) { spdlog::warn("{}", std::string(text)); },
       .info = [](absl::string_view text) { spdlog::info("{}", std::string(text)); },
       .debug = [](absl::string_view text) { spdlog::debug("{}", std::string(text)); }});
  if (!session.ok()) {
    *exit_code = FailModel(flags.model, session.status());
    return nullptr;
  }
  KeepFreedMemory();  // only now, so that memory freed during loading is returned
  return *std::move(session);
}

}  // namespace quintet
