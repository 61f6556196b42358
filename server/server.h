// The server process: models, gRPC, HTTP API, HTTP endpoints, drain and shutdown.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/access_log.h"
#include "server/client_timeouts.h"
#include "server/model_host.h"
#include "server/tracing_options.h"

namespace quintet {

struct ServerOptions {
  std::string listen = "127.0.0.1:50051";
  std::string http_listen = "127.0.0.1:9464";  // empty: no HTTP endpoints
  std::string http_api_listen;                 // empty: no HTTP API
  bool http_api_page = false;                  // the HTTP API also serves its page
  std::vector<HostOptions> models;
  int threads = 1;  // size of the compute thread pool, which all models share
  // Number of threads that tokenize texts of any length. One additional thread tokenizes only short
  // texts.
  int tokenizer_threads = 2;
  int64_t max_message_bytes = 4 << 20;
  int64_t default_timeout_us = 60'000'000, max_timeout_us = 600'000'000;
  int64_t drain_delay_us = 5'000'000, drain_timeout_us = 30'000'000, stall_timeout_us = 30'000'000;
  ClientTimeouts client_timeouts;
  bool allow_plaintext = false;
  std::string tls_cert, tls_key, tls_client_ca;  // PEM files; re-read when they change
  std::string api_key_file;                      // empty: no API key is required
  std::string admin_listen;        // empty: no administration; needs admin_api_key_file
  std::string admin_api_key_file;  // keys of administrators
  // Reads the configuration of the models again (SIGHUP, ReloadConfiguration). Called from one
  // thread at a time. Null: the server cannot read it again.
  std::function<absl::StatusOr<std::vector<HostOptions>>()> read_models;
  AccessLog::WriteLine access_log;        // receives the lines of the access log; null: off
  std::optional<TracingOptions> tracing;  // unset: requests are not traced
  // Returns the number of log lines that were lost so far.
  std::function<int64_t()> log_lines_dropped = [] { return int64_t{0}; };
};

// Flags that the signal handlers of the serve command set and the server reads.
struct ServerSignals {
  std::atomic<bool> terminate{false};   // drain, then stop
  std::atomic<bool> skip_drain{false};  // while draining: end all open RPCs now
  std::atomic<bool> reload{false};      // re-read the API keys and the models' configuration
  std::atomic<int> ignored{0};          // number of a received signal that has no meaning; logged
};

struct ServeOutcome {
  // The exit code: 0 after drain and stop, 2 if the configuration is wrong, 3 if a model could not
  // be loaded. If an engine stalls, Serve does not return: the process exits with code 70.
  int exit_code = 0;
  // Why the server did not start: INVALID_ARGUMENT for a wrong flag, otherwise a failed load.
  absl::Status status;
};

// Serves until `signals.terminate` is set, then drains and stops.
ServeOutcome Serve(const ServerOptions& options, ServerSignals* signals);

}  // namespace quintet
