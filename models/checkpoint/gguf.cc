#include "models/checkpoint/gguf.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checked_math.h"
#include "models/checkpoint/t5_names.h"
#include "nlohmann/json.hpp"

namespace quintet {

absl::StatusOr<GgufReader> GgufReader::Open(const std::string& path, bool follow_symlinks) {
  const std::string name = Printable(path.substr(path.rfind('/') + 1));
  GgufReader reader;
  QT_ASSIGN_OR_RETURN(CheckpointFile file, CheckpointFile::Open(path, name, follow_symlinks));
  reader.file_ = std::make_unique<const CheckpointFile>(std::move(file));
  QT_ASSIGN_OR_RETURN(GgufHeader header, GgufHeader::Read(reader.file_.get()));
  reader.header_ = std::make_unique<const GgufHeader>(std::move(header));
  const std::string architecture(reader.header_->Text("general.architecture"));
  if (architecture != "t5" && architecture != "t5encoder") {
    return absl::UnimplementedError(
        absl::StrCat(name, ": key general.architecture: expected t5encoder or t5, got \"",
                     Printable(architecture), "\"; other GGUF models are not supported"));
  }
  QT_RETURN_IF_ERROR(reader.AddTensors());
  return reader;
}

absl::Status GgufReader::AddTensors() {
  std::vector<GgufTensor> tensors = header_->tensors();
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const GgufTensor& a, const GgufTensor& b) { return a.offset < b.offset; });
  for (const GgufTensor& tensor : tensors) QT_RETURN_IF_ERROR(AddTensor(tensor));
  QT_RETURN_IF_ERROR(CheckOverlap());
  // AddTensor has renamed ffn_up to wi_1, Hugging Face's name in models with a gate (wi_0). In
  // models without a gate Hugging Face's name is wi.
  const bool gated = std::any_of(tensors_.begin(), tensors_.end(), [](const StoredTensor& t) {
    return absl::EndsWith(t.name, ".DenseReluDense.wi_0.weight");
  });
  for (StoredTensor& t : tensors_) {
    if (gated || !absl::EndsWith(t.name, ".DenseReluDense.wi_1.weight")) continue;
    t.name = absl::StrReplaceAll(t.name, {{".wi_1.", ".wi."}});
  }
  const auto twice = IndexNames();
  if (!twice) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file_->name(), ": tensor ", Printable(twice->first->name), " appears twice"));
}

absl::Status GgufReader::AddTensor(const GgufTensor& tensor) {
  const std::string where = absl::StrCat(file_->name(), ": tensor ", Printable(tensor.name));
  const GgufEncoding* encoding = FindGgufEncoding(tensor.type);
  if (encoding == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(where, ": format ", GgufTypeName(tensor.type), " is not supported, expected ",
                     SupportedGgufEncodings(), "; use another quantization of the model"));
  }
  // GgufHeader::Read has checked that the number of values times 8 bytes does not overflow.
  const int64_t values = *CheckedProduct(1, tensor.shape);
  if (tensor.shape.back() % encoding->block_values != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": rows of ", tensor.shape.back(), " values are not whole blocks of ",
                     encoding->block_values, " (", encoding->name, ")"));
  }
  const auto bytes = CheckedMultiply(values / encoding->block_values, encoding->block_bytes);
  const auto begin = CheckedAdd(header_->data_begin(), tensor.offset);
  const auto end = bytes && begin ? CheckedAdd(*begin, *bytes) : std::nullopt;
  if (!end || *end > file_->bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": its data, ", bytes.value_or(0), " bytes from offset ", tensor.offset,
                     ", ends after the file, which has ", file_->bytes(), " bytes"));
  }
  if (tensor.offset % header_->alignment() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": offset ", tensor.offset,
                                                   " is not a multiple of the alignment ",
                                                   header_->alignment()));
  }
  StoredTensor stored;
  stored.name = HuggingFaceT5Name(tensor.name);
  stored.type = encoding->values;
  stored.shape = tensor.shape;
  stored.bytes = values * StoredTypeBytes(stored.type);
  stored.offset_bytes = *begin;
  stored.encoding = encoding->decode == nullptr ? nullptr : encoding->name;
  tensors_.push_back(std::move(stored));
  encodings_.push_back(encoding);
  stored_bytes_.push_back(*bytes);
  return absl::OkStatus();
}

absl::Status GgufReader::CheckOverlap() const {
  int64_t end = 0;  // of the tensors so far, which are ordered by offset
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const StoredTensor& tensor = tensors_[i];
    if (stored_bytes_[i] > 0 && tensor.offset_bytes < end) {
      return absl::InvalidArgumentError(absl::StrCat(file_->name(), ": tensor ",
                                                     Printable(tensor.name), " at byte ",
                                                     tensor.offset_bytes, " overlaps another one"));
    }
    end = std::max(end, tensor.offset_bytes + stored_bytes_[i]);
  }
  return absl::OkStatus();
}

absl::Status GgufReader::Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                              void* destination) const {
  QT_CHECK(begin_bytes >= 0 && bytes >= 0 && begin_bytes <= tensor.bytes - bytes);
  const auto index = static_cast<size_t>(&tensor - tensors().data());
  QT_CHECK_LT(index, tensors().size());
  const GgufEncoding& encoding = *encodings_[index];
  if (encoding.decode == nullptr) {
    return file_->Read(tensor.offset_bytes + begin_bytes, bytes, destination);
  }
  constexpr int64_t kValue = sizeof(float);
  QT_CHECK(begin_bytes % kValue == 0 && bytes % kValue == 0);
  return Decode(encoding, tensor.offset_bytes, begin_bytes / kValue, bytes / kValue,
                static_cast<float*>(destination));
}

// Decodes values [begin, begin + count) of a tensor whose blocks begin at `offset` in the file.
absl::Status GgufReader::Decode(const GgufEncoding& encoding, int64_t offset, int64_t begin,
                                int64_t count, float* values) const {
  constexpr int64_t kPartBytes = 1 << 16;
  const int64_t size = encoding.block_values;
  const int64_t part_blocks = kPartBytes / encoding.block_bytes;
  std::vector<uint8_t> blocks;
  float decoded[256];
  QT_CHECK_LE(size, 256);
  const int64_t end = begin + count;
  for (int64_t at = begin; at < end;) {
    const int64_t first = at / size;
    const int64_t last = std::min((end + size - 1) / size, first + part_blocks);
    blocks.resize(static_cast<size_t>((last - first) * encoding.block_bytes));
    QT_RETURN_IF_ERROR(file_->Read(offset + first * encoding.block_bytes,
                                   static_cast<int64_t>(blocks.size()), blocks.data()));
    for (int64_t block = first; block < last; ++block) {
      encoding.decode(blocks.data() + (block - first) * encoding.block_bytes, decoded);
      const int64_t stop = std::min(end, (block + 1) * size);
      std::copy(decoded + at % size, decoded + (stop - block * size), values + (at - begin));
      at = stop;
    }
  }
  return absl::OkStatus();
}

absl::Status GgufReader::ReadFiles(
    absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const {
  bool go_on = true;
  return file_->ReadAll(take, &go_on);
}

nlohmann::json GgufReader::ConfigFields() const {
  struct Key {
    const char *key, *field;
  };
  const std::string architecture(header_->Text("general.architecture"));
  nlohmann::json fields = nlohmann::json::object();
  for (const Key& integer :
       {Key{".embedding_length", "d_model"},
        {".feed_forward_length", "d_ff"},
        {".block_count", "num_layers"},
        {".decoder_block_count", "num_decoder_layers"},
        {".attention.head_count", "num_heads"},
        {".attention.key_length", "d_kv"},
        {".attention.relative_buckets_count", "relative_attention_num_buckets"},
        {".decoder_start_token_id", "decoder_start_token_id"}}) {
    const auto value = header_->Integer(architecture + integer.key);
    if (value) fields[integer.field] = *value;
  }
  for (const Key& integer : {Key{"tokenizer.ggml.eos_token_id", "eos_token_id"},
                             {"tokenizer.ggml.padding_token_id", "pad_token_id"}}) {
    if (const auto value = header_->Integer(integer.key)) fields[integer.field] = *value;
  }
  const auto epsilon = header_->Number(architecture + ".attention.layer_norm_rms_epsilon");
  if (epsilon) fields["layer_norm_epsilon"] = *epsilon;
  return fields;
}

}  // namespace quintet
