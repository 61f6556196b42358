#include "server/api_keys.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/running_server.h"

namespace quintet {
namespace {

// SHA-256 of "abc" (FIPS 180-2, appendix B.1).
constexpr char kDigestOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

constexpr char kDigestOfXyz[] = "3608bca1e44ea6c4d268eb6db02260269892c0b42b86bbf1e77a6fa16c3c9282";

class KeyFile {
 public:
  explicit KeyFile(const std::string& text, mode_t mode = 0600) {
    char name[] = "/tmp/quintet_keys_XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(fd >= 0);
    close(fd);
    path_ = name;
    Write(text);
    chmod(path_.c_str(), mode);
  }
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  ~KeyFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST_CASE("Keys are recognised by their digests", "[api_keys]") {
  const KeyFile file(std::string("# one key\n") + kDigestOfAbc + "\n");
  ApiKeys keys;
  REQUIRE(keys.Load(file.path()).ok());
  CHECK(keys.MaxPriority("Bearer abc").has_value());
  CHECK_FALSE(keys.MaxPriority("Bearer abd").has_value());
  CHECK_FALSE(keys.MaxPriority("abc").has_value());
  CHECK_FALSE(keys.MaxPriority(std::string("Bearer ") + kDigestOfAbc).has_value());
  CHECK_FALSE(keys.MaxPriority("").has_value());
}

TEST_CASE("The line of a key sets its highest priority", "[api_keys]") {
  const auto highest = [](const std::string& after_digest) {
    const KeyFile file(std::string("  ") + kDigestOfXyz + "\n" + kDigestOfAbc + after_digest);
    ApiKeys keys;
    REQUIRE(keys.Load(file.path()).ok());
    CHECK(keys.MaxPriority("Bearer xyz") == Priority::kHigh);
    CHECK_FALSE(keys.MaxPriority("Bearer other").has_value());
    return keys.MaxPriority("Bearer abc");
  };
  CHECK(highest("") == Priority::kHigh);
  CHECK(highest(" low\n") == Priority::kLow);
  CHECK(highest("\tnormal \r\n") == Priority::kNormal);
  CHECK(highest("   high") == Priority::kHigh);
}

TEST_CASE("A call above the priority of its key is rejected", "[api_keys]") {
  constexpr Priority kAll[] = {Priority::kLow, Priority::kNormal, Priority::kHigh};
  for (const Priority requested : kAll) {
    for (const Priority highest : kAll) {
      CHECK(CheckPriority(requested, highest).ok() == (requested <= highest));
    }
  }
  CHECK(CheckPriority(Priority::kHigh, Priority::kNormal) ==
        absl::PermissionDeniedError(
            "call.priority: must be at most NORMAL for this API key, got HIGH"));
}

TEST_CASE("Errors about a key file name the line but not its content", "[api_keys]") {
  const auto error = [](const std::string& line) {
    ApiKeys keys;
    const absl::Status status =
        keys.Load(KeyFile(std::string("# comment\n") + kDigestOfAbc + "\n" + line + "\n").path());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::string digest = kDigestOfXyz;
  CHECK(error("secret low") ==
        "--api-key-file: line 3: expected the 64 hexadecimal digits of a SHA-256 digest");
  CHECK(error(digest + " secret") ==
        "--api-key-file: line 3: expected low, normal or high after the digest");
  CHECK(error(digest + " LOW") ==
        "--api-key-file: line 3: expected low, normal or high after the digest");
  CHECK(error(digest + " low high") ==
        "--api-key-file: line 3: expected a digest and a priority, got 3 words");
  CHECK(error(std::string(kDigestOfAbc) + " low") ==
        "--api-key-file: line 3: the digest is given twice");
}

TEST_CASE("Invalid key files are rejected, and the previous keys stay valid", "[api_keys]") {
  const KeyFile good(kDigestOfAbc);
  ApiKeys keys;
  REQUIRE(keys.Load(good.path()).ok());
  CHECK_FALSE(keys.Load(KeyFile("abc\n").path()).ok());
  CHECK_FALSE(keys.Load(KeyFile("# none\n").path()).ok());
  CHECK_FALSE(keys.Load(KeyFile(kDigestOfAbc, 0644).path()).ok());
  CHECK_FALSE(keys.Load("/nonexistent/keys").ok());
  CHECK(keys.MaxPriority("Bearer abc").has_value());
}

TEST_CASE("A server with keys requires one", "[api_keys][server]") {
  const KeyFile file(kDigestOfAbc);
  RunningServer server([&](ServerOptions* options) { options->api_key_file = file.path(); });
  const auto ask = [&](const std::string& authorization) {
    grpc::ClientContext context;
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    v1::GenerateRequest request;
    request.mutable_input()->set_text("key");
    v1::GenerateResponse response;
    return server.stub().Generate(&context, request, &response).error_code();
  };
  CHECK(ask("") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(ask("Bearer wrong") == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(ask("Bearer abc") == grpc::StatusCode::OK);
  CHECK(server.Get("/metrics").find(kDigestOfAbc) == std::string::npos);
  CHECK(server.Metric("quintet_requests_rejected_total{engine=\"0\",model_name=\"none\",reason="
                      "\"AUTH\"}") == 2);

  // SIGHUP reloads the key file. If the new file is invalid, the old keys remain in effect.
  file.Write(kDigestOfXyz);
  server.Reload();
  CHECK(Eventually([&] { return ask("Bearer xyz") == grpc::StatusCode::OK; }));
  CHECK(ask("Bearer abc") == grpc::StatusCode::PERMISSION_DENIED);
  file.Write("no digest");
  server.Reload();
  std::this_thread::sleep_for(
      std::chrono::milliseconds(1500));  // signals are handled once a second
  CHECK(ask("Bearer xyz") == grpc::StatusCode::OK);
}

}  // namespace
}  // namespace quintet
