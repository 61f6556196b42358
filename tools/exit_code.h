// What the process tells its caller.
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

// The same for a model or tokenizer that cannot be read, its directory before the message. Returns
// kExitModel, but kExitFailed when it was memory or the system that failed.
int FailModel(const std::string& directory, const absl::Status& status);

}  // namespace quintet
