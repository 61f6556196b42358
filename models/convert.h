// Conversion of checkpoints: into Quintet's packed form (models/weights_table.h says what it
// holds), or between Hugging Face's T5 and FAT5. The result is a self-contained directory:
// model.safetensors, config.json, generation_config.json, tokenizer files and licences. It appears
// whole or not at all (models/atomic_directory.h), and its bytes depend on the source's alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace quintet {

enum class ConvertForm : uint8_t {
  kPacked,
  kFat5,  // from T5 or mT5 in Hugging Face's form to FAT5's, as far as FAT5 can express the model
  kT5,    // from FAT5's form to Hugging Face's T5
};

struct ConvertResult {
  DType dtype = DType::kF32;  // of the matrices; packed from a source of mixed types: f32
  int64_t tensors = 0;
  int64_t bytes = 0;  // of model.safetensors' data
  std::string weights_sha256;
};

struct ConvertOptions {
  std::string source, target;
  ConvertForm form = ConvertForm::kPacked;
  // Of matrices: kF32, kBF16, kF16, or for the packed form kI8 or kF8 (one scale a row, the very
  // values that loading the source as int8 or fp8 gives). nullopt: as in the source. Vectors
  // (norms, biases, position tables) are f32 in the packed form; embeddings of an int8 or fp8 model
  // keep the source's type, and so does ffn_out of an fp8 model.
  std::optional<DType> dtype;
  bool replace = false;          // an existing target, which must be a model's directory or empty
  bool follow_symlinks = false;  // of the source's files, as in hub caches
  // After every piece, with bytes written and to write; false stops the conversion (CANCELLED).
  std::function<bool(int64_t done_bytes, int64_t total_bytes)> progress;
  // Called with the finished directory before it takes the target's place; an error discards it.
  std::function<absl::Status(const std::string& directory, const ConvertResult& result)> accept;
};

// INVALID_ARGUMENT: no directory could be made at `target` even on an empty disk, since the path is
// empty, ends in no name or is too long; or making it would touch the source, because one is or
// contains the other, by whatever links.
absl::Status CheckConvertTarget(const std::string& source, const std::string& target);

// Memory stays near the largest row block (GPT-2: near the largest tensor, which is transposed).
// Errors beside those of Create and of reading a model: UNIMPLEMENTED (the form cannot express the
// model), INVALID_ARGUMENT (a value does not fit f16; CheckConvertTarget),
// FAILED_PRECONDITION (symbolic links), ABORTED (the target cannot be made, or is no model's
// directory that may be replaced), RESOURCE_EXHAUSTED (disk full). After any error there is nothing
// new on disk.
absl::StatusOr<ConvertResult> Convert(const ConvertOptions& options);

}  // namespace quintet
