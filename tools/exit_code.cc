#include "tools/exit_code.h"

#include <cstdio>
#include <string>

namespace quintet {

int Fail(ExitCode code, const absl::Status& status) {
  std::fprintf(stderr, "quintet: %s\n", std::string(status.message()).c_str());
  return code;
}

ExitCode ModelExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
      return kExitFailed;
    default:
      return kExitModel;
  }
}

}  // namespace quintet
