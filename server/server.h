// The server process: models, gRPC, operator's endpoints, drain and shutdown.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/client_patience.h"
#include "server/model_host.h"

namespace quintet {

struct ServerOptions {
  std::string listen = "127.0.0.1:50051";
  std::string http_listen = "127.0.0.1:9464";  // empty: none
  std::vector<HostOptions> models;
  int threads = 1;            // of the one compute pool
  int tokenizer_threads = 2;  // for texts of any length; one more is for short ones alone
  int64_t max_message_bytes = 4 << 20;
  int64_t default_timeout_us = 60'000'000, max_timeout_us = 600'000'000;
  int64_t drain_delay_us = 5'000'000, drain_timeout_us = 30'000'000, stall_timeout_us = 30'000'000;
  ClientPatience patience;
  bool allow_plaintext = false;
  std::string tls_cert, tls_key, tls_client_ca;  // PEM files, read again when they change
  std::string api_key_file;
  // Lines of the log that were lost so far.
  std::function<int64_t()> log_lines_dropped = [] { return int64_t{0}; };
};

// What the serve command's signal handlers tell the server.
struct ServerSignals {
  std::atomic<bool> terminate{false};
  std::atomic<bool> hurry{false};  // after that: what is still open is cut off at once
  std::atomic<bool> reload{false};
  std::atomic<int> ignored{0};  // a signal that means nothing to the server, for the log
};

// Exit codes of the process: 0 drained, 2 configuration, 3 model rejected, 70 the engine stalled.
// Serves until `signals.terminate`, then drains. The status names what kept it from starting:
// INVALID_ARGUMENT for flags, anything else for models.
struct ServeOutcome {
  int exit_code = 0;
  absl::Status status;
};
ServeOutcome Serve(const ServerOptions& options, ServerSignals* signals);

}  // namespace quintet
