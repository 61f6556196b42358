#include "server/address.h"

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("ParseAddress requires a host and a port", "[address]") {
  const auto read = [](const char* text) { return ParseAddress("--listen", text); };
  CHECK(read("127.0.0.1:50051")->host == "127.0.0.1");
  CHECK(read("127.0.0.1:50051")->port == 50051);
  CHECK(read("[::1]:0")->host == "::1");
  CHECK(read("localhost:65535")->port == 65535);
  for (const char* text : {"", "50051", ":50051", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536",
                           "127.0.0.1:+80", "127.0.0.1:-1", "127.0.0.1:http", "unix:/tmp/socket"}) {
    INFO(text);
    CHECK(absl::IsInvalidArgument(read(text).status()));
  }
}

TEST_CASE("Loopback addresses are 127.0.0.0/8, ::1 and localhost", "[address]") {
  for (const char* host : {"127.0.0.1", "127.255.0.3", "::1", "localhost"}) {
    INFO(host);
    CHECK(IsLoopback({host, 1}));
  }
  for (const char* host : {"0.0.0.0", "::", "128.0.0.1", "127.example.test", "127.0.0.1.test",
                           "localhost.test", "192.0.2.127"}) {
    INFO(host);
    CHECK_FALSE(IsLoopback({host, 1}));
  }
}

}  // namespace
}  // namespace quintet
