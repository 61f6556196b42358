#include "models/checkpoint/gguf_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checked_math.h"
#include "models/checkpoint/weight_files.h"

namespace quintet {
namespace {

constexpr int64_t kMaxKeyBytes = 65535;  // the limit of the format
constexpr int64_t kMaxTensorNameBytes = 512;
constexpr int64_t kMaxTextBytes = int64_t{16} << 20;
constexpr int64_t kKeptTextBytes = 4096;
constexpr int64_t kMaxDimensions = 4;
constexpr int64_t kMaxAlignment = 65536;

// Bytes of a number of this type; 0 for strings, arrays and unknown types.
int64_t NumberBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Sets value->integer and value->number from the bytes of a number.
template <typename T>
void SetInteger(const char* bytes, GgufValue* value) {
  const T loaded = Load<T>(bytes);
  value->number = static_cast<double>(loaded);
  if (std::cmp_less_equal(loaded, std::numeric_limits<int64_t>::max())) {
    value->integer = static_cast<int64_t>(loaded);
  }
}

void SetNumber(GgufType type, const char* bytes, GgufValue* value) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return SetInteger<uint8_t>(bytes, value);
    case GgufType::kI8:
      return SetInteger<int8_t>(bytes, value);
    case GgufType::kU16:
      return SetInteger<uint16_t>(bytes, value);
    case GgufType::kI16:
      return SetInteger<int16_t>(bytes, value);
    case GgufType::kU32:
      return SetInteger<uint32_t>(bytes, value);
    case GgufType::kI32:
      return SetInteger<int32_t>(bytes, value);
    case GgufType::kU64:
      return SetInteger<uint64_t>(bytes, value);
    case GgufType::kI64:
      return SetInteger<int64_t>(bytes, value);
    case GgufType::kF32:
      value->number = Load<float>(bytes);
      return;
    case GgufType::kF64:
      value->number = Load<double>(bytes);
      return;
    default:
      return;
  }
}

// Reads a file from front to back. The first error is kept; reads after it return zeros.
class HeaderStream {
 public:
  HeaderStream(const CheckpointFile& file, int64_t offset)
      : file_(file),
        at_(offset),
        limit_(std::min(file.bytes(), GgufHeader::kMaxHeaderBytes)),
        buffer_(1 << 16) {}

  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  int64_t position() const { return at_; }
  int64_t rest() const { return limit_ - at_; }

  void Fail(const std::string& message) {
    if (ok()) status_ = absl::InvalidArgumentError(absl::StrCat(file_.name(), ": ", message));
  }

  template <typename T>
  T Take() {
    char bytes[sizeof(T)] = {};
    Copy(sizeof(T), bytes);
    return Load<T>(bytes);
  }

  // Reads a count of items; `what` names them in errors. Fails if the count exceeds `most`, or if
  // the items, each of at least `least_bytes` bytes, need more bytes than follow.
  int64_t TakeCount(int64_t most, int64_t least_bytes, absl::string_view what) {
    const auto count = Take<uint64_t>();
    if (!ok()) return 0;
    if (count > static_cast<uint64_t>(most)) {
      Fail(absl::StrCat(what, ": ", count, " exceeds the limit of ", most));
      return 0;
    }
    if (static_cast<int64_t>(count) > rest() / least_bytes) {
      Fail(absl::StrCat(what, ": ", count, " do not fit in the ", std::max<int64_t>(rest(), 0),
                        " bytes that follow"));
      return 0;
    }
    return static_cast<int64_t>(count);
  }

  // Reads a string of at most `most` bytes and returns its first `kept` bytes. `what` names the
  // string in errors.
  std::string TakeText(int64_t most, int64_t kept, absl::string_view what) {
    const int64_t bytes = TakeCount(most, 1, what);
    std::string text(static_cast<size_t>(std::min(bytes, kept)), '\0');
    Copy(static_cast<int64_t>(text.size()), text.data());
    Skip(bytes - static_cast<int64_t>(text.size()));
    return text;
  }

  void Skip(int64_t bytes) {
    if (!ok()) return;
    if (bytes > rest()) return Short();
    at_ += bytes;
  }

  void Copy(int64_t bytes, char* to) {
    while (ok() && bytes > 0) {
      if (bytes > rest()) return Short();
      if (at_ < begin_ || at_ >= begin_ + filled_) Fill();
      if (!ok()) return;
      const int64_t part = std::min(bytes, begin_ + filled_ - at_);
      std::memcpy(to, buffer_.data() + (at_ - begin_), static_cast<size_t>(part));
      to += part, at_ += part, bytes -= part;
    }
  }

 private:
  void Short() {
    Fail(absl::StrCat("the header does not end within ",
                      limit_ == file_.bytes() ? "the file, which has " : "the limit of ", limit_,
                      " bytes"));
  }

  void Fill() {
    begin_ = at_;
    filled_ = std::min<int64_t>(static_cast<int64_t>(buffer_.size()), limit_ - at_);
    if (ok()) status_ = file_.Read(begin_, filled_, buffer_.data());
  }

  const CheckpointFile& file_;
  int64_t at_;
  const int64_t limit_;
  std::vector<char> buffer_;  // bytes [begin_, begin_ + filled_) of the file
  int64_t begin_ = 0, filled_ = 0;
  absl::Status status_;
};

void TakeArray(const std::string& where, HeaderStream* stream, GgufValue* value) {
  value->element = static_cast<GgufType>(stream->Take<uint32_t>());
  const bool strings = value->element == GgufType::kString;
  const int64_t bytes = strings ? 8 : NumberBytes(value->element);
  if (bytes == 0) {
    stream->Fail(absl::StrCat(where, ": arrays of type ", static_cast<uint32_t>(value->element),
                              " are not supported, expected numbers or strings"));
    return;
  }
  value->count = stream->TakeCount(GgufHeader::kMaxElements, bytes, where + ": elements");
  value->offset = stream->position();
  if (!strings) return stream->Skip(value->count * bytes);
  for (int64_t i = 0; i < value->count && stream->ok(); ++i) {
    stream->TakeText(kMaxTextBytes, 0, where);
  }
}

GgufValue TakeValue(const std::string& where, HeaderStream* stream) {
  GgufValue value;
  value.type = static_cast<GgufType>(stream->Take<uint32_t>());
  if (value.type == GgufType::kString) {
    value.text = stream->TakeText(kMaxTextBytes, kKeptTextBytes, where);
  } else if (value.type == GgufType::kArray) {
    TakeArray(where, stream, &value);
  } else if (const int64_t bytes = NumberBytes(value.type); bytes > 0) {
    char number[8] = {};
    stream->Copy(bytes, number);
    SetNumber(value.type, number, &value);
  } else {
    stream->Fail(absl::StrCat(where, ": unknown type ", static_cast<uint32_t>(value.type)));
  }
  return value;
}

GgufTensor TakeTensor(HeaderStream* stream) {
  GgufTensor tensor;
  tensor.name = stream->TakeText(kMaxTensorNameBytes, kMaxTensorNameBytes, "name of a tensor");
  const std::string where = absl::StrCat("tensor ", Printable(tensor.name));
  const auto dimensions = stream->Take<uint32_t>();
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    stream->Fail(
        absl::StrCat(where, ": expected 1 to ", kMaxDimensions, " dimensions, got ", dimensions));
    return tensor;
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = stream->Take<uint64_t>();
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      stream->Fail(absl::StrCat(where, ": dimension ", i, " is ", size));
      return tensor;
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  tensor.type = stream->Take<uint32_t>();
  const auto offset = stream->Take<uint64_t>();
  // A value has at most 8 bytes.
  if (!CheckedProduct(8, tensor.shape) ||
      offset > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    stream->Fail(absl::StrCat(where, ": its size or its offset ", offset, " overflows"));
  }
  tensor.offset = static_cast<int64_t>(offset);
  return tensor;
}

absl::Status CheckStart(HeaderStream* stream, const CheckpointFile& file) {
  if (stream->Take<uint32_t>() != 0x46554747) {  // "GGUF"
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": not a GGUF file"));
  }
  const auto version = stream->Take<uint32_t>();
  QT_RETURN_IF_ERROR(stream->status());
  if (version == 2 || version == 3) return absl::OkStatus();
  const bool swapped = version != 0 && (version & 0xffff) == 0;
  return absl::InvalidArgumentError(absl::StrCat(
      file.name(), ": GGUF ",
      swapped ? "files of big-endian machines are" : absl::StrCat("version ", version, " is"),
      " not supported, expected version 2 or 3, little-endian; convert the model again"));
}

}  // namespace

absl::StatusOr<GgufHeader> GgufHeader::Read(const CheckpointFile* file) {
  constexpr int64_t kLeastValueBytes = 8 + 4 + 1, kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;
  GgufHeader header;
  header.file_ = file;
  HeaderStream stream(*file, 0);
  QT_RETURN_IF_ERROR(CheckStart(&stream, *file));
  const int64_t tensors = stream.TakeCount(kMaxTensors, kLeastTensorBytes, "tensors");
  const int64_t keys = stream.TakeCount(kMaxKeys, kLeastValueBytes, "keys");
  for (int64_t i = 0; i < keys && stream.ok(); ++i) {
    const std::string key = stream.TakeText(kMaxKeyBytes, kMaxKeyBytes, "name of a key");
    const std::string where = absl::StrCat("key ", Printable(key));
    GgufValue value = TakeValue(where, &stream);
    if (!header.values_.emplace(key, std::move(value)).second) {
      stream.Fail(absl::StrCat(where, " appears twice"));
    }
  }
  std::unordered_set<std::string> names;
  for (int64_t i = 0; i < tensors && stream.ok(); ++i) {
    header.tensors_.push_back(TakeTensor(&stream));
    if (!names.insert(header.tensors_.back().name).second) {
      stream.Fail(
          absl::StrCat("tensor ", Printable(header.tensors_.back().name), " appears twice"));
    }
  }
  if (const GgufValue* alignment = header.Find("general.alignment")) {
    header.alignment_ = alignment->integer.value_or(0);
    const int64_t n = header.alignment_;
    if (n < 1 || n > kMaxAlignment || (n & (n - 1)) != 0) {
      stream.Fail(absl::StrCat("key general.alignment: expected a power of two up to ",
                               kMaxAlignment, ", got ", n));
      header.alignment_ = 1;
    }
  }
  QT_RETURN_IF_ERROR(stream.status());
  header.data_begin_ =
      (stream.position() + header.alignment_ - 1) / header.alignment_ * header.alignment_;
  return header;
}

const GgufValue* GgufHeader::Find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<int64_t> GgufHeader::Integer(std::string_view key) const {
  const GgufValue* value = Find(key);
  return value == nullptr ? std::nullopt : value->integer;
}

std::optional<double> GgufHeader::Number(std::string_view key) const {
  const GgufValue* value = Find(key);
  return value == nullptr ? std::nullopt : value->number;
}

std::string_view GgufHeader::Text(std::string_view key) const {
  const GgufValue* value = Find(key);
  return value == nullptr ? std::string_view() : value->text;
}

absl::StatusOr<const GgufValue*> GgufHeader::Array(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return absl::NotFoundError(absl::StrCat(file_->name(), ": no key ", Printable(key)));
  }
  if (value->type == GgufType::kArray) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(file_->name(), ": key ", Printable(key), ": expected an array"));
}

absl::StatusOr<std::vector<std::string>> GgufHeader::Strings(std::string_view key,
                                                             int64_t max_bytes) const {
  QT_ASSIGN_OR_RETURN(const GgufValue* value, Array(key));
  const std::string where = absl::StrCat("key ", Printable(key));
  HeaderStream stream(*file_, value->offset);
  if (value->element != GgufType::kString) stream.Fail(where + ": expected an array of strings");
  std::vector<std::string> strings;
  for (int64_t i = 0; i < value->count && stream.ok(); ++i) {
    strings.push_back(stream.TakeText(max_bytes, max_bytes, where));
  }
  QT_RETURN_IF_ERROR(stream.status());
  return strings;
}

absl::StatusOr<std::vector<double>> GgufHeader::Numbers(std::string_view key) const {
  QT_ASSIGN_OR_RETURN(const GgufValue* value, Array(key));
  const int64_t bytes = NumberBytes(value->element);
  HeaderStream stream(*file_, value->offset);
  if (bytes == 0) stream.Fail(absl::StrCat("key ", Printable(key), ": expected numbers"));
  std::vector<double> numbers;
  for (int64_t i = 0; i < value->count && stream.ok(); ++i) {
    char raw[8] = {};
    stream.Copy(bytes, raw);
    GgufValue number;
    SetNumber(value->element, raw, &number);
    numbers.push_back(*number.number);
  }
  QT_RETURN_IF_ERROR(stream.status());
  return numbers;
}

absl::StatusOr<std::string> GgufHeader::Bytes(std::string_view key) const {
  QT_ASSIGN_OR_RETURN(const GgufValue* value, Array(key));
  if (NumberBytes(value->element) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_->name(), ": key ", Printable(key), ": expected an array of bytes"));
  }
  std::string bytes(static_cast<size_t>(value->count), '\0');
  QT_RETURN_IF_ERROR(file_->Read(value->offset, value->count, bytes.data()));
  return bytes;
}

}  // namespace quintet
