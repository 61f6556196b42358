// quintet bench serve: measures the performance of a running server as its clients see it.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/conditions.h"
#include "tools/flag_group.h"
#include "tools/flag_values.h"
#include "tools/load/flags.h"
#include "tools/load/server_target.h"

namespace quintet {
namespace {

struct BenchServeFlags {
  ServerTargetOptions target;
  std::string priority = "normal", protocol = "grpc";
  LoadFlags load;
};

LoadPriority PriorityOf(const std::string& name) {
  return name == "low"    ? LoadPriority::kLow
         : name == "high" ? LoadPriority::kHigh
                          : LoadPriority::kNormal;
}

std::vector<std::string> ProtocolNames() {
  std::vector<std::string> names;
  for (const Protocol& protocol : Protocols()) names.emplace_back(protocol.name);
  return names;
}

std::string ProtocolHelp() {
  std::string help = "Protocol of the requests:";
  for (const Protocol& protocol : Protocols()) {
    absl::StrAppend(&help, &protocol == &Protocols()[0] ? " " : ", ", protocol.name, " (",
                    protocol.description, ")");
  }
  return help + ".";
}

int Run(BenchServeFlags flags) {
  if (absl::Status status = ValidateLoad(&flags.load); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  const Protocol& protocol = ProtocolOf(flags.protocol);
  if (flags.target.attempts > 1 && !protocol.retries) {
    return Fail(kExitUsage, absl::InvalidArgumentError(absl::StrCat(
                                "--attempts: --protocol ", protocol.name, " does not retry")));
  }
  flags.target.stream = !flags.load.unary;
  flags.target.priority = PriorityOf(flags.priority);
  absl::StatusOr<std::unique_ptr<ServerTarget>> target = protocol.connect(flags.target);
  if (!target.ok()) return Fail(kExitRemote, target.status());
  const ServerInfo& info = (*target)->info();
  flags.load.shape.vocab = info.vocab;
  nlohmann::ordered_json conditions = MachineConditions();
  conditions["server"] = info.conditions;
  return RunAndReport(flags.load, target->get(), std::move(conditions),
                      {{"protocol", flags.protocol},
                       {"channels", flags.target.channels},
                       {"timeout_s", flags.target.timeout_s},
                       {"attempts", flags.target.attempts},
                       {"priority", flags.priority}});
}

void AddAdaptersFlag(CLI::App* command, std::vector<std::string>* adapters) {
  FlagGroup(command, "Requests")
      .Add("--adapters", adapters, "NAME ...",
           "LoRA adapters of the model; each request has one of them, by Zipf's law in this order. "
           "Empty = no request has an adapter.");
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
  FlagGroup server(command, "Server");
  ServerTargetOptions* target = &flags->target;
  target->address = "127.0.0.1:50051";
  server.Add("--target", &target->address, "HOST:PORT",
             "Address of the server: of the gRPC port, or of the HTTP API.");
  server.Add("--protocol", &flags->protocol, "PROTOCOL", ProtocolHelp(),
             CLI::IsMember(ProtocolNames()));
  server.Add("--model", &target->model, "NAME",
             "Name of the model; empty = the only model of the server.");
  server.Add("--channels", &target->channels, "CHANNELS",
             "gRPC: number of connections, used round-robin; HTTP has one per request in "
             "flight. Range [1, 10000].",
             InRange(1, 10000));
  server.Add("--timeout", &target->timeout_s, "SECONDS", "Timeout of each request.",
             InRange(0.001, 1e6));
  server.Add("--attempts", &target->attempts, "ATTEMPTS",
             "Maximum attempts per request: gRPC retries UNAVAILABLE. Range [1, 5].",
             InRange(1, 5));
  server.Add("--priority", &flags->priority, "PRIORITY",
             "Priority of all requests: low, normal or high.",
             CLI::IsMember({"low", "normal", "high"}));
  AddLoadFlags(command, &flags->load);
  AddAdaptersFlag(command, &flags->load.shape.adapters);
}

}  // namespace quintet
