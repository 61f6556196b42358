// quintet serve: runs the gRPC server. The flags are in serve_flags.cc, the server is in server/.
#include <malloc.h>
#include <pthread.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/grpc_log.h"
#include "server/server.h"
#include "spdlog/spdlog.h"
#include "tools/command_line.h"
#include "tools/exit_code.h"
#include "tools/logging.h"
#include "tools/serve_flags.h"
#include "tools/version.h"

namespace quintet {
namespace {

ServerSignals g_signals;

// Signal handler. After a first SIGINT or SIGTERM, a SIGINT skips the drain; a SIGTERM does not,
// because supervisors may send it more than once.
void OnSignal(int signal) {
  if (signal == SIGHUP) {
    g_signals.reload = true;
  } else if (signal != SIGTERM && signal != SIGINT) {
    g_signals.ignored = signal;
  } else if (g_signals.terminate.exchange(true) && signal == SIGINT) {
    g_signals.skip_drain = true;
  }
}

// Limits the free memory that glibc keeps. By default many threads have a heap (arena) of their
// own, each of which stays as large as its largest burst, so the memory of a long-running server
// with many threads keeps growing (tools/reliability/soak.py).
void BoundHeaps() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 256 << 10);  // setting it also turns off its dynamic growth
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

// Reduces the stack size of new threads. The full stack (8 MiB by default) counts towards RLIMIT_AS
// and RLIMIT_DATA. No thread uses more than a tenth of kStackBytes.
void BoundStacks() {
  constexpr size_t kStackBytes = 2 << 20;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  if (pthread_attr_setstacksize(&attributes, kStackBytes) == 0) {
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
}

// Turns off Abseil's search for deadlocks at each lock. Debian builds Abseil with it, and gRPC
// locks so often that it took a fifth of the CPU time of short RPCs.
void DisableLockOrderChecks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

bool SameServerSettings(const ServerOptions& a, const ServerOptions& b) {
  const auto settings = [](const ServerOptions& o) {
    return std::tie(o.listen, o.http_listen, o.http_api_listen, o.admin_listen, o.threads,
                    o.max_message_bytes, o.default_timeout_us, o.max_timeout_us, o.drain_delay_us,
                    o.drain_timeout_us, o.stall_timeout_us, o.allow_plaintext, o.tls_cert,
                    o.tls_key, o.tls_client_ca, o.api_key_file, o.admin_api_key_file);
  };
  return settings(a) == settings(b);
}

// Reads the configuration of the models again, from the arguments of the running server (its
// command line is `first`), the environment and the --config file as it is now.
absl::StatusOr<std::vector<HostOptions>> ReadModels(const CommandLine& first,
                                                    const ServerOptions& running) {
  CommandLine line;
  ServeFlags flags;
  AddServeFlags(line, line.AddCommand({.name = "serve", .description = "", .example = ""}, nullptr),
                &flags);
  QT_RETURN_IF_ERROR(line.ResolveAgain(first));
  QT_ASSIGN_OR_RETURN(ServerOptions options, ServerOptionsOf(flags));
  QT_RETURN_IF_ERROR(CheckModelSections(flags, options));
  if (!SameServerSettings(options, running)) {
    spdlog::warn(
        "settings of the server other than its models have changed: restart it to apply "
        "them");
  }
  return std::move(options.models);
}

int Run(const ServeFlags& flags, const CommandLine& line) {
  BoundHeaps();
  BoundStacks();
  DisableLockOrderChecks();
  QueueLog();
  RouteGrpcLog();
  absl::StatusOr<ServerOptions> resolved = ServerOptionsOf(flags);
  if (!resolved.ok()) return FailModel("serve", resolved.status());
  ServerOptions options = *std::move(resolved);
  if (absl::Status status = CheckModelSections(flags, options); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  options.log_lines_dropped = LogLinesDropped;
  if (flags.access_log) options.access_log = LogLine;
  const absl::StatusOr<std::optional<TracingOptions>> tracing =
      ReadTracingOptions([](const char* name) { return std::getenv(name); }, Version());
  if (!tracing.ok()) return Fail(kExitUsage, tracing.status());
  options.tracing = *tracing;
  options.read_models = [&line, &options] { return ReadModels(line, options); };
  // Check early that the device can be opened. Each model opens it again when it is loaded, after
  // the server has begun to listen.
  for (HostOptions& model : options.models) {
    if (absl::Status status = OpenDevices(&model.placement, /*several=*/true).status();
        !status.ok()) {
      return Fail(kExitUsage, status);
    }
  }
  // Until here SIGTERM and SIGINT ended the process at once (tools/interrupt.h).
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGALRM, SIGUSR1, SIGUSR2}) {
    std::signal(signal, OnSignal);
  }
  const ServeOutcome outcome = Serve(options, &g_signals);
  spdlog::default_logger()->flush();
  if (outcome.status.ok()) return outcome.exit_code;
  // If a model cannot be loaded, report it as the other subcommands do.
  if (outcome.exit_code == kExitModel) return FailModel("serve", outcome.status);
  return Fail(static_cast<ExitCode>(outcome.exit_code), outcome.status);
}

}  // namespace

void AddServeCommand(CommandLine& line) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = line.AddCommand(
      {.name = "serve",
       .description = "Serve models over gRPC (quintet.v1.Inference) with continuous batching.",
       .example = "quintet serve --model g2p=deploy/models/g2p --listen 127.0.0.1:50051",
       .details =
           "SIGTERM or SIGINT (Ctrl-C) drains the server: it accepts calls for --drain-delay "
           "and then gives running calls\n--drain-timeout to finish. A second SIGINT cancels "
           "them at once. SIGHUP reloads the API keys and the configuration: models that the "
           "--config file adds,\nremoves or changes are loaded, unloaded or replaced.\n\n"
           "OTEL_EXPORTER_OTLP_ENDPOINT and the other environment variables of OpenTelemetry turn "
           "tracing on: server/README.md."},
      [flags, &line] { return Run(*flags, line); });
  AddServeFlags(line, command, flags.get());
}

}  // namespace quintet
