// Reads a text encoder that is a single safetensors file without config.json, as ComfyUI and
// similar programs use them: t5xxl_fp16.safetensors, t5xxl_fp8_e4m3fn_scaled.safetensors,
// umt5_xxl_fp8_e4m3fn_scaled.safetensors. The names are those of Hugging Face's T5 or of Wan,
// possibly after a prefix that all of them have.
//
// A quantized matrix X.weight has a scale, one value or one per row, in X.weight_scale or, in older
// files with a tensor `scaled_fp8`, in X.scale_weight. Its format is declared by X.comfy_quant or
// the metadata entry _quantization_metadata: float8_e4m3fn, float8_e5m2 or int8_tensorwise. Scales
// of activations (X.input_scale, X.scale_input) are not used.
//
// Matrices in e4m3 and int8 are read as they are, with row scales in a tensor X.scales as in
// Quintet's packed format (models/weights/table.h). All other quantized tensors are widened: to a
// 16-bit type that holds their values exactly or, if they have a scale, to f32.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/weight_files.h"

namespace quintet {

class TextEncoderFile : public WeightFiles {
 public:
  // Opens a file. Returns the errors of SafetensorsReader::OpenFile, INVALID_ARGUMENT if the file
  // holds no T5 encoder or a scale of wrong shape or value, and UNIMPLEMENTED for a quantization
  // format that is not in the list at the top of this file.
  static absl::StatusOr<TextEncoderFile> Open(const std::string& path,
                                              bool follow_symlinks = false);

  absl::Status Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                    void* destination) const override;
  absl::Status ReadFiles(
      absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const override;

  // The content of the tensor spiece_model, a SentencePiece model; NOT_FOUND if there is none.
  absl::StatusOr<std::string> SentencePieceModel() const;
  const std::string& name() const { return name_; }  // last path component, printable

 private:
  // Where the values of a tensor are in the file, and how they are scaled.
  struct Origin {
    const StoredTensor* values = nullptr;  // null: a tensor of row scales
    StoredType type = StoredType::kF32;    // of `values`, which may be declared as U8
    // If `rows` is null, `scale` is the scale of all values. Otherwise `rows` is a tensor with one
    // scale per row (a float type).
    float scale = 1.0F;
    const StoredTensor* rows = nullptr;
  };
  struct Layers;  // formats that the file declares, by the name of the matrix without ".weight"

  TextEncoderFile() = default;
  absl::StatusOr<Layers> ReadLayers() const;
  absl::Status AddTensors(const std::string& prefix);
  absl::Status AddTensor(const StoredTensor& tensor, const std::string& name, const Layers& layers);
  absl::Status FindScale(const StoredTensor& tensor, Origin* origin) const;
  void Add(const StoredTensor& tensor, const std::string& name, StoredType type,
           const Origin& origin);
  void AddScales(const StoredTensor& tensor, const std::string& name, const Origin& origin);
  absl::Status ReadScales(const Origin& origin, int64_t begin, int64_t count, float* scales) const;
  absl::Status Widen(const Origin& origin, const StoredTensor& tensor, int64_t begin, int64_t count,
                     void* destination) const;

  std::string name_;
  std::unique_ptr<const SafetensorsReader> file_;  // origins_ point to its tensors
  std::vector<Origin> origins_;                    // [tensors]
};

}  // namespace quintet
