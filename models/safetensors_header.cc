#include "models/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "models/checked_math.h"
#include "nlohmann/json.hpp"

namespace quintet {
namespace {

constexpr size_t kMaxTensors = 100000;
constexpr size_t kMaxRank = 8;

// Receives the header's JSON events. Where the parser stands: depth 1 holds tensor names, depth 2
// the fields of one tensor (or of
// __metadata__), depth 3 the numbers of "shape" or "data_offsets"; anything deeper is refused on
// the spot.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(std::string where) : where_(std::move(where)) {}

  const absl::Status& status() const { return status_; }
  SafetensorsHeader& header() { return header_; }

  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == 1) return true;
    if (depth_ == 2) {
      seen_fields_ = 0;
      metadata_keys_.clear();
      return true;
    }
    return Unexpected("an object");
  }

  bool end_object() override {
    --depth_;
    if (depth_ != 1 || in_metadata_) {
      in_metadata_ = false;
      return true;
    }
    if (seen_fields_ != kAllFields) {
      return Fail(absl::StrCat("tensor ", Printable(current_.name),
                               ": expected dtype, shape and data_offsets"));
    }
    header_.tensors.push_back(std::move(current_));
    return true;
  }

  bool start_array(std::size_t) override {
    ++depth_;
    if (depth_ != 3 || in_metadata_ || (field_ != kShape && field_ != kOffsets)) {
      return Unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    --depth_;
    if (field_ == kOffsets && offsets_ != 2) {
      return Fail(absl::StrCat("tensor ", Printable(current_.name),
                               ": expected 2 data_offsets, got ", offsets_));
    }
    return true;
  }

  bool key(string_t& key) override {
    if (depth_ == 1) return StartTensor(key);
    if (in_metadata_) {
      metadata_key_ = key;
      return metadata_keys_.insert(key).second || Fail("__metadata__ has a key twice");
    }
    field_ = key == "dtype"          ? kType
             : key == "shape"        ? kShape
             : key == "data_offsets" ? kOffsets
                                     : 0;
    if (field_ == 0) {
      return Fail(
          absl::StrCat("tensor ", Printable(current_.name), ": unknown field ", Printable(key)));
    }
    if (seen_fields_ & field_) {
      return Fail(absl::StrCat("tensor ", Printable(current_.name), ": ", key, " appears twice"));
    }
    seen_fields_ |= field_;
    offsets_ = 0;
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[metadata_key_] = std::move(value);
      return true;
    }
    if (depth_ != 2 || field_ != kType) return Unexpected("a string");
    for (int i = 0; i <= static_cast<int>(StoredType::kU64); ++i) {
      if (value == StoredTypeName(static_cast<StoredType>(i))) {
        current_.type = static_cast<StoredType>(i);
        return true;
      }
    }
    return Fail(
        absl::StrCat("tensor ", Printable(current_.name), ": unknown dtype ", Printable(value)));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) return Unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(absl::StrCat("tensor ", Printable(current_.name), ": ", value, " is too large"));
    }
    if (field_ == kShape) {
      if (current_.shape.size() == kMaxRank) {
        return Fail(absl::StrCat("tensor ", Printable(current_.name), ": more than ", kMaxRank,
                                 " dimensions"));
      }
      current_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (offsets_ == 2) {
      return Fail(absl::StrCat("tensor ", Printable(current_.name), ": more than 2 data_offsets"));
    }
    (offsets_++ == 0 ? current_.offset_bytes : current_.bytes) = static_cast<int64_t>(value);
    return true;
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a fractional number");
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return Fail(absl::StrCat("the header is not valid JSON at byte ", position));
  }

 private:
  // Fields of one tensor, as bits.
  static constexpr int kType = 1, kShape = 2, kOffsets = 4, kAllFields = 7;

  bool StartTensor(const std::string& name) {
    if (!names_.insert(name).second) {
      return Fail(absl::StrCat("tensor ", Printable(name), " appears twice"));
    }
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) return true;
    if (header_.tensors.size() == kMaxTensors) {
      return Fail(absl::StrCat("more than ", kMaxTensors, " tensors"));
    }
    current_ = StoredTensor();
    current_.name = name;
    field_ = 0;
    return true;
  }

  bool Unexpected(const char* what) {
    if (depth_ == 0) return Fail(absl::StrCat("the header is ", what, ", not an object"));
    return Fail(absl::StrCat(in_metadata_ ? "__metadata__" : "tensor ",
                             in_metadata_ ? "" : Printable(current_.name), ": unexpected ", what));
  }

  bool Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", what));
    return false;
  }

  std::string where_;
  absl::Status status_;
  SafetensorsHeader header_;
  absl::flat_hash_set<std::string> names_, metadata_keys_;
  StoredTensor current_;  // `bytes` holds the end offset until CheckLayout
  std::string metadata_key_;
  int depth_ = 0, field_ = 0, seen_fields_ = 0, offsets_ = 0;
  bool in_metadata_ = false;
};

// Offsets must tile the data without gaps or overlaps, each range as long as its shape says. Turns
// end offsets into lengths.
absl::Status CheckLayout(int64_t data_bytes, const std::string& where,
                         std::vector<StoredTensor>* tensors) {
  // Empty tensors may share an offset with the tensor that starts there: they sort before it.
  std::sort(tensors->begin(), tensors->end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::make_pair(a.offset_bytes, a.bytes) < std::make_pair(b.offset_bytes, b.bytes);
  });
  int64_t expected_begin = 0;
  for (StoredTensor& t : *tensors) {
    const std::string tensor = absl::StrCat(where, ": tensor ", Printable(t.name));
    const int64_t begin = t.offset_bytes, end = t.bytes;
    if (end < begin) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, ": data_offsets end at ", end, " before they begin at ", begin));
    }
    const auto bytes = CheckedProduct(StoredTypeBytes(t.type), t.shape);
    if (!bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, ": ", Describe(t.type, t.shape), " is too large"));
    }
    if (*bytes != end - begin) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, ": ", Describe(t.type, t.shape), " takes ", *bytes,
                       " bytes, but data_offsets span ", end - begin));
    }
    if (begin != expected_begin) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, ": expected data at offset ", expected_begin, ", got ", begin));
    }
    if (end > data_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(tensor, ": data ends at offset ", end,
                                                     ", but the file holds ", data_bytes,
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
  HeaderEvents events(where);
  const bool complete = nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  if (!events.status().ok()) return events.status();
  if (!complete) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": the header is not valid JSON"));
  }
  SafetensorsHeader header = std::move(events.header());
  if (absl::Status s = CheckLayout(data_bytes, where, &header.tensors); !s.ok()) return s;
  return header;
}

}  // namespace quintet
