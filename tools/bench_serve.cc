// quintet bench serve: measures the performance of a running server as its clients see it.
#include <memory>

#include "tools/conditions.h"
#include "tools/flag_values.h"
#include "tools/load/flags.h"
#include "tools/load/grpc_target.h"

namespace quintet {
namespace {

struct BenchServeFlags {
  GrpcTarget::Options target;
  std::string priority = "normal", protocol = "grpc";
  LoadFlags load;
};

v1::Priority PriorityOf(const std::string& name) {
  return name == "low"    ? v1::PRIORITY_LOW
         : name == "high" ? v1::PRIORITY_HIGH
                          : v1::PRIORITY_NORMAL;
}

nlohmann::ordered_json ServerConditions(const v1::GetModelInfoResponse& info) {
  const v1::Limits& limits = info.limits();
  return {{"model", info.model()},
          {"version", info.version()},
          {"family", info.family()},
          {"dtype", info.dtype()},
          {"parameters", info.parameters()},
          {"max_queue_requests", limits.max_queue_requests()},
          {"max_queue_tokens", limits.max_queue_tokens()},
          {"max_running_sequences", limits.max_running_sequences()},
          {"encoder_cache_bytes", limits.encoder_cache_bytes()}};
}

int Run(BenchServeFlags flags) {
  if (absl::Status status = ValidateLoad(&flags.load); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  flags.target.stream = !flags.load.unary;
  flags.target.priority = PriorityOf(flags.priority);
  flags.target.kserve = flags.protocol == "kserve";
  absl::StatusOr<std::unique_ptr<GrpcTarget>> target = GrpcTarget::Connect(flags.target);
  if (!target.ok()) return Fail(kExitRemote, target.status());
  const v1::GetModelInfoResponse& info = (*target)->info();
  flags.load.shape.vocab = info.vocab();
  nlohmann::ordered_json conditions = MachineConditions();
  conditions["server"] = ServerConditions(info);
  return RunAndReport(flags.load, target->get(), std::move(conditions),
                      {{"protocol", flags.protocol},
                       {"channels", flags.target.channels},
                       {"timeout_s", flags.target.timeout_s},
                       {"attempts", flags.target.attempts},
                       {"priority", flags.priority}});
}

}  // namespace

void AddBenchServeCommand(CommandLine& line) {
  auto flags = std::make_shared<BenchServeFlags>();
  CLI::App* command = line.AddCommand(
      {.name = "bench serve",
       .description = "Measure a running server under load.",
       .example = "quintet bench serve --target 127.0.0.1:50051 --request-rate 20 --duration 60 "
                  "--output-tokens 16:128 --goodput ttft:75 tpot:20",
       .details =
           "Latencies are measured from the scheduled arrival of a request, also if it was sent "
           "late. TTFT: time to\nthe first message with tokens. ITL: time between such messages. "
           "TPOT: (last - first token) / (tokens - 1).\nE2E: time to the end of the call. Rates "
           "count responses received between the first measured request and\nthe last one sent."},
      [flags] { return Run(*flags); });
  constexpr char kGroup[] = "Server";
  GrpcTarget::Options* target = &flags->target;
  target->address = "127.0.0.1:50051";
  command->add_option("--target", target->address, "Address of the gRPC server.")
      ->type_name("HOST:PORT")
      ->group(kGroup);
  command
      ->add_option("--protocol", flags->protocol,
                   "Protocol of the requests: grpc (quintet.v1) or kserve (KServe v2 over gRPC).")
      ->check(CLI::IsMember({"grpc", "kserve"}))
      ->type_name("PROTOCOL")
      ->group(kGroup);
  command
      ->add_option("--model", target->model,
                   "Name of the model; empty = the only model of the server.")
      ->type_name("NAME")
      ->group(kGroup);
  command
      ->add_option("--channels", target->channels,
                   "Number of connections, used round-robin. Range [1, 10000].")
      ->check(InRange(1, 10000))
      ->type_name("CHANNELS")
      ->group(kGroup);
  command->add_option("--timeout", target->timeout_s, "Timeout of each request.")
      ->check(InRange(0.001, 1e6))
      ->type_name("SECONDS")
      ->group(kGroup);
  command
      ->add_option("--attempts", target->attempts,
                   "Maximum attempts per request: gRPC retries UNAVAILABLE. Range [1, 5].")
      ->check(InRange(1, 5))
      ->type_name("ATTEMPTS")
      ->group(kGroup);
  command
      ->add_option("--priority", flags->priority, "Priority of all requests: low, normal or high.")
      ->check(CLI::IsMember({"low", "normal", "high"}))
      ->type_name("PRIORITY")
      ->group(kGroup);
  AddLoadFlags(command, &flags->load);
}

}  // namespace quintet
