#include "server/api_keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/sha256.h"

namespace quintet {

absl::Status ApiKeys::Load(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--api-key-file: cannot read ", path, ": ", std::strerror(errno)));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::InvalidArgumentError(
        "--api-key-file: must be readable by its owner only (mode 0600)");
  }
  std::ifstream file(path);
  std::vector<Digest> digests;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string text(absl::StripAsciiWhitespace(line));
    if (text.empty() || text[0] == '#') continue;
    const bool hex = std::all_of(text.begin(), text.end(), [](char c) {
      return absl::ascii_isxdigit(static_cast<unsigned char>(c));
    });
    if (text.size() != 64 || !hex) {
      return absl::InvalidArgumentError(
          absl::StrCat("--api-key-file: line ", number,
                       ": expected the 64 hexadecimal digits of a SHA-256 digest"));
    }
    Digest digest;
    const std::string lower = absl::AsciiStrToLower(text);
    std::copy(lower.begin(), lower.end(), digest.begin());
    digests.push_back(digest);
  }
  if (digests.empty()) return absl::InvalidArgumentError("--api-key-file: holds no digest");
  std::lock_guard<std::mutex> lock(mutex_);
  digests_ = std::move(digests);
  return absl::OkStatus();
}

bool ApiKeys::Allows(absl::string_view authorization) const {
  if (!absl::ConsumePrefix(&authorization, "Bearer ")) return false;
  Sha256 hash;
  hash.Update(authorization.data(), authorization.size());
  const std::string digest = hash.Finish();
  std::lock_guard<std::mutex> lock(mutex_);
  // Every digest is compared whole, so that the time says nothing about them.
  bool allowed = false;
  for (const Digest& known : digests_) {
    unsigned difference = 0;
    for (size_t i = 0; i < known.size(); ++i)
      difference |= static_cast<unsigned char>(known[i] ^ digest[i]);
    allowed |= difference == 0;
  }
  return allowed;
}

}  // namespace quintet
