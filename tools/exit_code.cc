#include "tools/exit_code.h"

#include "absl/strings/str_cat.h"
#include "tools/logging.h"

namespace quintet {

int Fail(ExitCode code, const absl::Status& status) {
  LogFailure(std::string(status.message()));
  return code;
}

int FailModel(const std::string& directory, const absl::Status& status) {
  const bool system_failed =
      absl::IsResourceExhausted(status) || absl::IsInternal(status) || absl::IsUnavailable(status);
  return Fail(system_failed ? kExitFailed : kExitModel,
              absl::Status(status.code(), absl::StrCat(directory, ": ", status.message())));
}

}  // namespace quintet
