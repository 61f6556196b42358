// Converts checkpoints, in any format that WeightFiles reads, to Quintet's packed format (described
// in models/weights/table.h), or between Hugging Face's T5 format and FAT5's. The result is a
// self-contained directory: model.safetensors, config.json, generation_config.json, tokenizer files
// and licences. It is created atomically (models/checkpoint/atomic_directory.h). Its bytes depend
// only on the source and the options.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/tensor.h"
#include "models/adapters/adapter.h"

namespace quintet {

enum class ConvertForm : uint8_t {
  kPacked,
  kFat5,  // from Hugging Face's T5 or mT5 to FAT5, if FAT5 can express the model
  kT5,    // from FAT5 to Hugging Face's T5
};

struct ConvertResult {
  DType dtype = DType::kF32;  // of the matrices; packed format: f32 if they differ
  int64_t tensors = 0;
  int64_t bytes = 0;  // data bytes of model.safetensors
  std::string weights_sha256;
};

struct ConvertOptions {
  std::string source, target;  // source: a directory or file, as FindModel returns it
  std::string tokenizer;       // as in FindTokenizer; empty: that of the source
  ConvertForm form = ConvertForm::kPacked;
  // Dtype of the matrices: kF32, kBF16 or kF16. The packed format also allows kI8 and kF8 with one
  // scale per row, quantised exactly as --dtype int8 or fp8 quantises the source at load. nullopt:
  // the source's dtype. The packed format stores vectors (norms, biases, position tables) as f32.
  // Embeddings of int8 and fp8 models, and ffn_out of fp8 models, keep the source's dtype.
  std::optional<DType> dtype;
  // Replace an existing target, which must be a model directory or empty.
  bool replace = false;
  // True: follow all symbolic links to the source's files. False: follow only links that stay
  // within one repository's folder of a Hugging Face hub cache; other links are an error.
  bool follow_symlinks = false;
  // LoRA adapter to merge into the weights, or null. ReadAdapter must have read it for the source
  // model. Null unless kPacked. Must not change matrices that the source stores quantised.
  const Adapter* adapter = nullptr;
  // Called after every block of weights with the number of bytes written so far and the total
  // number of bytes. If it returns false, the conversion stops (CANCELLED).
  std::function<bool(int64_t done_bytes, int64_t total_bytes)> progress;
  // Called with the finished temporary directory before it replaces the target. If this function
  // returns an error, the temporary directory is deleted and the target is unchanged.
  std::function<absl::Status(const std::string& directory, const ConvertResult& result)> accept;
};

// Returns INVALID_ARGUMENT if `target` is not a valid path of a new directory (it is empty, does
// not end in a name or is too long), or if source and target, after resolving links, are the same
// directory or one contains the other.
absl::Status CheckConvertTarget(const std::string& source, const std::string& target);

// Runs the conversion. Peak memory is about the size of the largest block of rows (GPT-2: of the
// largest tensor, which is transposed). Returns the errors of reading a model, of
// CheckConvertTarget and of AtomicDirectory::Create (with ABORTED instead of NOT_FOUND and
// FAILED_PRECONDITION), and: UNIMPLEMENTED (the format cannot express the model), INVALID_ARGUMENT
// (a value does not fit f16), FAILED_PRECONDITION (the adapter changes a matrix that the source
// stores quantised; or the form is not kPacked, and the source is one file or already converted),
// ABORTED (the target is not a model directory and so is not replaced), RESOURCE_EXHAUSTED (disk
// full). After an error nothing new is left on disk.
absl::StatusOr<ConvertResult> Convert(const ConvertOptions& options);

}  // namespace quintet
