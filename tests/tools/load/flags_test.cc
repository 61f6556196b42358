#include "tools/load/flags.h"

#include "tests/catch.h"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

LoadFlags Flags() {
  LoadFlags flags;
  flags.pacing.concurrency = 1;
  flags.pacing.requests = 1;
  return flags;
}

TEST_CASE("files that cannot be written are refused before the load begins") {
  const ScratchDirectory directory;
  const std::string file = directory / "file", missing = directory / "none/file";
  for (std::string LoadFlags::*const member : {&LoadFlags::json_file, &LoadFlags::record_file}) {
    const std::string name = member == &LoadFlags::json_file ? "--json" : "--record";
    LoadFlags flags = Flags();
    flags.*member = missing;
    const absl::Status refused = ValidateLoad(&flags);
    CHECK(absl::IsInvalidArgument(refused));
    CHECK(refused.message() == name + ": cannot write " + missing + ": No such file or directory");
    flags.*member = file;
    CHECK(ValidateLoad(&flags).ok());
  }
}

}  // namespace
}  // namespace quintet
