#include "server/grpc_release.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("LacksSecurityFixes recognises the releases of gRPC before the fixes") {
  for (const char* old :
       {"1.51.1", "1.52.2", "1.53.2", "1.57.9", "1.58.2", "1.59.2", "1.59.4", "1.60.1", "1.61.2",
        "1.62.2", "1.63.1", "1.64.2", "1.65.3", "1.65.0-pre1", "0.99.0"}) {
    INFO(old);
    CHECK(LacksSecurityFixes(old));
  }
  for (const char* fixed : {"1.58.3", "1.59.5", "1.59.10", "1.60.2", "1.61.3", "1.62.3", "1.63.2",
                            "1.64.3", "1.65.4", "1.66.0", "1.70.1", "1.76.0-dev", "2.0.0"}) {
    INFO(fixed);
    CHECK_FALSE(LacksSecurityFixes(fixed));
  }
}

TEST_CASE("A version that cannot be read counts as one without the fixes") {
  for (const char* text : {"", "1", "1.66", "1.x.0", "one.66.0", "1.66.", "-1.66.0"}) {
    INFO(text);
    CHECK(LacksSecurityFixes(text));
  }
}

TEST_CASE("The linked gRPC has a version that can be read") {
  CHECK_FALSE(LacksSecurityFixes(absl::StrCat("2", grpc::Version())));  // 21.51.1 for 1.51.1
}

}  // namespace
}  // namespace quintet
