#include "kernels/cpu_ops.h"

namespace quintet::cpu {

void CandidateLogits(const CandidateLogitsArgs& args, ThreadPool&) {
  const int64_t vocab = args.logits.dim[1];
  for (int64_t i = 0; i < args.indices.dim[0]; ++i) {
    const auto at = static_cast<size_t>(i);
    const Tensor& from = args.from_raw[at] != 0 ? args.raw_logits : args.logits;
    const int32_t* indices = args.indices.as<int32_t>() + i * args.indices.stride[0];
    float* values = args.values.as<float>() + i * args.values.stride[0];
    for (int64_t j = 0; j < args.indices.dim[1]; ++j) {
      const int64_t row = args.first_rows[at] + indices[j] / vocab;
      values[j] =
          indices[j] < 0 ? 0.0f : from.as<float>()[row * from.stride[0] + indices[j] % vocab];
    }
  }
}

}  // namespace quintet::cpu
