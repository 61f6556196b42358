#include "models/checkpoint/sha256.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

std::string Hash(const std::string& text, size_t piece) {
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += piece) {
    hash.Update(text.data() + i, std::min(piece, text.size() - i));
  }
  return hash.Finish();
}

TEST_CASE("SHA-256 equals the vectors of FIPS 180-4, whole and in pieces") {
  const std::string two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  const std::pair<std::string, std::string> vectors[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {two_blocks, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1000000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
  for (const auto& [text, expected] : vectors) {
    for (size_t piece : {1, 3, 63, 64, 65, 1 << 20}) CHECK(Hash(text, piece) == expected);
  }
}

TEST_CASE("The SHA-256 of a file equals that of its bytes") {
  const std::string path = "/tmp/quintet_sha256_" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary) << std::string(1000000, 'a');
  Sha256 hash;
  REQUIRE(HashFile(path, &hash).ok());
  CHECK(hash.Finish() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  unlink(path.c_str());
  CHECK(HashFile(path, &hash).code() == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quintet
