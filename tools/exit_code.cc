#include "tools/exit_code.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace quintet {

int Fail(ExitCode code, const absl::Status& status) {
  std::fprintf(stderr, "quintet: %s\n", std::string(status.message()).c_str());
  return code;
}

int FailModel(const std::string& directory, const absl::Status& status) {
  const bool system_failed =
      absl::IsResourceExhausted(status) || absl::IsInternal(status) || absl::IsUnavailable(status);
  return Fail(system_failed ? kExitFailed : kExitModel,
              absl::Status(status.code(), absl::StrCat(directory, ": ", status.message())));
}

}  // namespace quintet
