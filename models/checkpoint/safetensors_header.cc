#include "models/checkpoint/safetensors_header.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checked_math.h"
#include "models/checkpoint/json_string.h"

namespace quintet {
namespace {

constexpr size_t kMaxTensors = 100000;
constexpr size_t kMaxMetadata = 10000;
constexpr size_t kMaxRank = 8;

// Parses a header of the fixed structure {name: {dtype, shape, data_offsets}, ...}, with strings
// under __metadata__. A general JSON parser would keep all values of a hostile header in memory.
// This parser keeps only tensors and metadata, and does not recurse.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  absl::StatusOr<SafetensorsHeader> Parse() {
    ReserveTensors();
    Object([this](const std::string& name) { return Entry(name); });
    SkipSpace();
    if (status_.ok() && at_ != text_.size()) Fail("unexpected bytes after the header's object");
    QT_RETURN_IF_ERROR(status_);
    return std::move(header_);
  }

 private:
  // Bits of seen_fields_: the fields of the current tensor that have been parsed.
  static constexpr int kType = 1, kShape = 2, kOffsets = 4, kAllFields = 7;

  // Reserves memory for all tensors at once, because a growing vector would double the peak memory.
  // The number of "data_offsets" keys is an upper bound.
  void ReserveTensors() {
    size_t count = 0;
    const std::string_view field = "\"data_offsets\"";
    for (size_t at = text_.find(field); at != text_.npos && count < kMaxTensors;
         at = text_.find(field, at + field.size())) {
      ++count;
    }
    header_.tensors.reserve(count);
  }

  bool Fail(const std::string& what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(where_, ": ", what, " (byte ", at_, " of the header)"));
    }
    return false;
  }
  bool FailTensor(const std::string& what) {
    return Fail(absl::StrCat("tensor ", Printable(tensor_.name), ": ", what));
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }
  bool Accept(char c) {
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Expect(char c) {
    return Accept(c) || Fail(absl::StrCat("expected '", std::string(1, c), "'"));
  }

  bool String(std::string* value) {
    SkipSpace();
    return ReadJsonString(text_, &at_, value) || Fail("expected a string of valid JSON and UTF-8");
  }

  bool Unsigned(int64_t* value) {
    SkipSpace();
    const size_t begin = at_;
    *value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      const auto tens = CheckedMultiply(*value, 10);
      const auto sum = tens ? CheckedAdd(*tens, text_[at_] - '0') : std::nullopt;
      if (!sum) return FailTensor("a number is too large");
      *value = *sum;
      ++at_;
    }
    const bool leading_zero = at_ - begin > 1 && text_[begin] == '0';
    return (at_ > begin && !leading_zero) || FailTensor("expected an integer that is not negative");
  }

  // Parses {"key": VALUE, ...} and calls field(key) to parse each value.
  template <typename Field>
  bool Object(Field field) {
    if (!Expect('{')) return false;
    if (Accept('}')) return true;
    do {
      std::string key;
      if (!String(&key) || !Expect(':') || !field(key)) return false;
    } while (Accept(','));
    return Expect('}');
  }

  bool Entry(const std::string& name) {
    if (name == "__metadata__") {
      if (std::exchange(seen_metadata_, true)) return Fail("__metadata__ appears twice");
      return Object([this](const std::string& key) { return Metadata(key); });
    }
    if (header_.tensors.size() == kMaxTensors) {
      return Fail(absl::StrCat("more than ", kMaxTensors, " tensors"));
    }
    tensor_ = StoredTensor();
    tensor_.name = name;
    seen_fields_ = 0;
    if (!Object([this](const std::string& field) { return Field(field); })) return false;
    if (seen_fields_ != kAllFields) return FailTensor("expected dtype, shape and data_offsets");
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  bool Metadata(const std::string& key) {
    if (header_.metadata.size() == kMaxMetadata) {
      return Fail(absl::StrCat("__metadata__: more than ", kMaxMetadata, " keys"));
    }
    const auto [entry, is_new] = header_.metadata.emplace(key, std::string());
    if (!is_new) return Fail("__metadata__ has a key twice");
    return String(&entry->second);
  }

  bool Field(const std::string& name) {
    const int field = name == "dtype"          ? kType
                      : name == "shape"        ? kShape
                      : name == "data_offsets" ? kOffsets
                                               : 0;
    if (field == 0) return FailTensor(absl::StrCat("unknown field ", Printable(name)));
    if (seen_fields_ & field) return FailTensor(absl::StrCat(name, " appears twice"));
    seen_fields_ |= field;
    return field == kType ? Type() : field == kShape ? Shape() : Offsets();
  }

  bool Type() {
    std::string name;
    if (!String(&name)) return false;
    for (int i = 0; i <= static_cast<int>(StoredType::kU64); ++i) {
      tensor_.type = static_cast<StoredType>(i);
      if (name == StoredTypeName(tensor_.type)) return true;
    }
    return FailTensor(absl::StrCat("unknown dtype ", Printable(name)));
  }

  bool Shape() {
    if (!Expect('[')) return false;
    if (Accept(']')) return true;
    do {
      if (tensor_.shape.size() == kMaxRank) {
        return FailTensor(absl::StrCat("more than ", kMaxRank, " dimensions"));
      }
      int64_t dimension;
      if (!Unsigned(&dimension)) return false;
      tensor_.shape.push_back(dimension);
    } while (Accept(','));
    return Expect(']');
  }

  // Parses data_offsets: [begin, end]. tensor_.bytes holds the end offset until CheckLayout
  // replaces it by the size.
  bool Offsets() {
    return Expect('[') && Unsigned(&tensor_.offset_bytes) && Expect(',') &&
           Unsigned(&tensor_.bytes) && Expect(']');
  }

  const std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  absl::Status status_;
  SafetensorsHeader header_;
  StoredTensor tensor_;  // the tensor being parsed
  int seen_fields_ = 0;
  bool seen_metadata_ = false;
};

// Checks that the tensors' offsets cover the data without gaps or overlaps, and that the size of
// each tensor matches its shape and dtype. Replaces the end offset, which StoredTensor::bytes holds
// until now, by the size.
absl::Status CheckLayout(int64_t data_bytes, const std::string& where,
                         std::vector<StoredTensor>* tensors) {
  // Sort by offset. An empty tensor may have the same offset as the tensor that follows it;
  // comparing `bytes` (the end offset) as well puts the empty tensor first.
  std::sort(tensors->begin(), tensors->end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::make_pair(a.offset_bytes, a.bytes) < std::make_pair(b.offset_bytes, b.bytes);
  });
  int64_t expected_begin = 0;
  for (StoredTensor& t : *tensors) {
    const auto invalid = [&](const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": tensor ", Printable(t.name), ": ", what));
    };
    const int64_t begin = t.offset_bytes, end = t.bytes;
    if (end < begin) {
      return invalid(absl::StrCat("data_offsets end at ", end, " before they begin at ", begin));
    }
    const auto bytes = CheckedProduct(StoredTypeBytes(t.type), t.shape);
    if (!bytes) return invalid(absl::StrCat(Describe(t.type, t.shape), " is too large"));
    if (*bytes != end - begin) {
      return invalid(absl::StrCat(Describe(t.type, t.shape), " takes ", *bytes,
                                  " bytes, but data_offsets span ", end - begin));
    }
    if (begin != expected_begin) {
      return invalid(absl::StrCat("expected data at offset ", expected_begin, ", got ", begin));
    }
    if (end > data_bytes) {
      return invalid(absl::StrCat("data ends at offset ", end, ", but the file holds ", data_bytes,
                                  " bytes of data"));
    }
    t.bytes = *bytes;
    expected_begin = end;
  }
  if (expected_begin != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": tensors take ", expected_begin,
                                                   " bytes, but the file holds ", data_bytes,
                                                   " bytes of data"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_bytes,
                                                         const std::string& where) {
  if (json.empty() || json[0] != '{') {
    return absl::InvalidArgumentError(absl::StrCat(where, ": the header does not start with '{'"));
  }
  QT_ASSIGN_OR_RETURN(SafetensorsHeader header, HeaderParser(json, where).Parse());
  QT_RETURN_IF_ERROR(CheckLayout(data_bytes, where, &header.tensors));
  return header;
}

}  // namespace quintet
