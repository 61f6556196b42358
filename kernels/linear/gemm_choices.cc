#include "kernels/linear/gemm_choices.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace quintet {
namespace {

constexpr absl::string_view kTitle = "quintet product choices 1";

// FNV-1a hash. It detects damage, not tampering.
uint64_t Checksum(absl::string_view bytes) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (const char c : bytes) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return sum;
}

std::string End(size_t shapes, absl::string_view before) {
  return absl::StrCat("end ", shapes, " ", absl::Hex(Checksum(before), absl::kZeroPad16), "\n");
}

// Parses one line of a file of GEMM choices: the ten numbers that identify a GEMM shape (*key),
// then the index of the algorithm for it (*choice). Returns false if the line is malformed.
bool ParseShape(absl::string_view line, GemmAlgorithmChoices::Key* key, int* choice) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != key->size() + 1) return false;
  for (size_t i = 0; i < key->size(); ++i) {
    if (!absl::SimpleAtoi(words[i], &(*key)[i])) return false;
  }
  return absl::SimpleAtoi(words.back(), choice) && *choice >= 0 &&
         *choice < GemmAlgorithmChoices::kChoices;
}

}  // namespace

int GemmAlgorithmChoices::Find(const Key& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? -1 : found->second;
}

void GemmAlgorithmChoices::Add(const Key& key, int choice) {
  if (choices_.size() >= kMostShapes) return;
  choices_[key] = choice;
  changed_ = true;
}

absl::Status GemmAlgorithmChoices::Merge(absl::string_view text, absl::string_view device) {
  const auto damaged = [](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("product choices: ", what));
  };
  if (static_cast<int64_t>(text.size()) > kMostTextBytes) return damaged("too long");
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  // Four elements of `lines` are not lines of shapes: the title, the device, the line "end", and
  // the empty string that follows the last newline.
  if (lines.size() < 4 || lines[0] != kTitle) return damaged("no title");
  if (!lines.back().empty()) return damaged("the last line has no end");
  const size_t shapes = lines.size() - 4;
  const size_t before = text.size() - lines[lines.size() - 2].size() - 1;
  if (text.substr(before) != End(shapes, text.substr(0, before))) return damaged("wrong checksum");
  if (lines[1] != device) return absl::OkStatus();
  std::map<Key, int> merged = choices_;
  for (size_t i = 0; i < shapes; ++i) {
    Key key;
    int choice = 0;
    if (!ParseShape(lines[i + 2], &key, &choice)) {
      return damaged(absl::StrCat("line ", i + 3, " is no shape with a choice"));
    }
    merged.emplace(key, choice);
  }
  if (merged.size() > kMostShapes) return damaged("too many shapes");
  choices_ = std::move(merged);
  return absl::OkStatus();
}

std::string GemmAlgorithmChoices::Text(absl::string_view device) const {
  std::string text = absl::StrCat(kTitle, "\n", device, "\n");
  for (const auto& [key, choice] : choices_) {
    absl::StrAppend(&text, absl::StrJoin(key, " "), " ", choice, "\n");
  }
  absl::StrAppend(&text, End(choices_.size(), text));
  return text;
}

}  // namespace quintet
