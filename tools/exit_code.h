// Exit codes of the quintet process.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace quintet {

enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,        // something could not be done: a line, a file, memory
  kExitUsage = 2,         // flags, environment or configuration file
  kExitModel = 3,         // model or tokenizer rejected
  kExitRemote = 4,        // a remote call failed
  kExitDevice = 70,       // the accelerator failed or stalled
  kExitInterrupted = 130  // SIGINT, SIGTERM or SIGHUP
};

// Writes "quintet: <message>" to standard error (as JSON with --log-format json) and returns
// `code`.
int Fail(ExitCode code, const absl::Status& status);

// Like Fail, but for a model or tokenizer that cannot be loaded. The message starts with
// `directory`. Returns kExitModel, or kExitFailed if the status is RESOURCE_EXHAUSTED, INTERNAL or
// UNAVAILABLE (out of memory, system errors).
int FailModel(const std::string& directory, const absl::Status& status);

}  // namespace quintet
