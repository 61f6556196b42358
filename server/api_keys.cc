#include "server/api_keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "models/checkpoint/sha256.h"

namespace quintet {
namespace {

const char* Name(Priority priority) {
  switch (priority) {
    case Priority::kLow:
      return "LOW";
    case Priority::kNormal:
      return "NORMAL";
    default:
      return "HIGH";
  }
}

}  // namespace

absl::Status CheckPriority(Priority requested, Priority highest) {
  if (requested <= highest) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("call.priority: must be at most ", Name(highest),
                                                  " for this API key, got ", Name(requested)));
}

absl::StatusOr<ApiKeys::Key> ApiKeys::ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  const std::string digest = absl::AsciiStrToLower(words[0]);
  const bool hex = std::all_of(digest.begin(), digest.end(), [](char c) {
    return absl::ascii_isxdigit(static_cast<unsigned char>(c));
  });
  Key key;
  if (digest.size() != key.digest.size() || !hex) {
    // The error message does not quote the line, which may hold an API key instead of a digest.
    return absl::InvalidArgumentError("expected the 64 hexadecimal digits of a SHA-256 digest");
  }
  std::copy(digest.begin(), digest.end(), key.digest.begin());
  if (words.size() == 1) return key;
  if (words.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a digest and a priority, got ", words.size(), " words"));
  }
  if (words[1] == "low") {
    key.max_priority = Priority::kLow;
  } else if (words[1] == "normal") {
    key.max_priority = Priority::kNormal;
  } else if (words[1] != "high") {
    return absl::InvalidArgumentError("expected low, normal or high after the digest");
  }
  return key;
}

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
  std::vector<Key> keys;
  std::set<Digest> digests;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#') continue;
    absl::StatusOr<Key> key = ParseLine(text);
    if (!key.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--api-key-file: line ", number, ": ", key.status().message()));
    }
    if (!digests.insert(key->digest).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--api-key-file: line ", number, ": the digest is given twice"));
    }
    keys.push_back(*key);
  }
  if (keys.empty()) return absl::InvalidArgumentError("--api-key-file: holds no digest");
  std::lock_guard<std::mutex> lock(mutex_);
  keys_ = std::move(keys);
  return absl::OkStatus();
}

std::optional<Priority> ApiKeys::MaxPriority(absl::string_view authorization) const {
  if (!absl::ConsumePrefix(&authorization, "Bearer ")) return std::nullopt;
  Sha256 hash;
  hash.Update(authorization.data(), authorization.size());
  const std::string digest = hash.Finish();
  std::lock_guard<std::mutex> lock(mutex_);
  // All bytes of every digest are compared, so that the time that this loop takes reveals nothing
  // about the digests.
  std::optional<Priority> found;
  for (const Key& key : keys_) {
    unsigned difference = 0;
    for (size_t i = 0; i < key.digest.size(); ++i) {
      difference |= static_cast<unsigned char>(key.digest[i] ^ digest[i]);
    }
    if (difference == 0) found = key.max_priority;
  }
  return found;
}

}  // namespace quintet
