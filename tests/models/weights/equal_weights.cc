#include "tests/models/weights/equal_weights.h"

#include <cstring>
#include <vector>

#include "kernels/linear/weight.h"

namespace quintet {
namespace {

bool Same(const LinearWeight& a, const LinearWeight& b) {
  if (a.n() != b.n() || a.k() != b.k() || a.type() != b.type() || a.gated() != b.gated())
    return false;
  if (!a.defined()) return true;
  std::vector<float> x(a.n() * a.k()), y(x.size());
  a.Unpack(0, Tensor::F32(x.data(), {a.n(), a.k()}));
  b.Unpack(0, Tensor::F32(y.data(), {b.n(), b.k()}));
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

bool Same(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.rank != b.rank || a.dim != b.dim) return false;
  std::vector<float> x(a.elements()), y(x.size());
  ConvertToF32(a.data, a.dtype, a.elements(), x.data());
  ConvertToF32(b.data, b.dtype, b.elements(), y.data());
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

bool Same(const PositionBias& a, const PositionBias& b) {
  return a.kind == b.kind && a.heads == b.heads && a.saturation == b.saturation &&
         a.asymmetric == b.asymmetric && a.fire_c == b.fire_c &&
         a.fire_threshold == b.fire_threshold && Same(a.table, b.table) &&
         Same(a.slopes, b.slopes) && Same(a.knots, b.knots) &&
         Same(a.segment_slope, b.segment_slope) && Same(a.segment_offset, b.segment_offset);
}

std::string Difference(const StackWeights& a, const StackWeights& b) {
  if (a.layers.size() != b.layers.size()) return "layers";
  if (!Same(a.final_norm, b.final_norm)) return "final_norm";
  if (!Same(a.final_norm_beta, b.final_norm_beta)) return "final_norm_beta";
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const LayerWeights &x = a.layers[i], &y = b.layers[i];
    for (LinearWeight LayerWeights::*weight :
         {&LayerWeights::qkv, &LayerWeights::attention_out, &LayerWeights::cross_q,
          &LayerWeights::cross_out, &LayerWeights::ffn_in, &LayerWeights::ffn_out}) {
      if (!Same(x.*weight, y.*weight)) return "a matrix of layer " + std::to_string(i);
    }
    for (Tensor LayerWeights::*vector :
         {&LayerWeights::attention_norm, &LayerWeights::attention_norm_beta,
          &LayerWeights::qkv_bias, &LayerWeights::attention_out_bias, &LayerWeights::cross_norm,
          &LayerWeights::ffn_norm, &LayerWeights::ffn_norm_beta, &LayerWeights::ffn_in_bias,
          &LayerWeights::ffn_out_bias}) {
      if (!Same(x.*vector, y.*vector)) return "a vector of layer " + std::to_string(i);
    }
    if (!Same(x.bias, y.bias)) return "position bias of layer " + std::to_string(i);
  }
  return "";
}

}  // namespace

std::string DifferenceOfWeights(const ModelWeights& a, const ModelWeights& b) {
  if (!Same(a.embedding, b.embedding)) return "embedding";
  if (!Same(a.position_embedding, b.position_embedding)) return "position_embedding";
  if (std::string d = Difference(a.encoder, b.encoder); !d.empty()) return "encoder: " + d;
  if (std::string d = Difference(a.decoder, b.decoder); !d.empty()) return "decoder: " + d;
  for (LinearWeight ModelWeights::*weight :
       {&ModelWeights::cross_kv, &ModelWeights::head, &ModelWeights::classifier_dense,
        &ModelWeights::classifier}) {
    if (!Same(a.*weight, b.*weight)) return "cross_kv, head or classifier";
  }
  for (Tensor ModelWeights::*vector :
       {&ModelWeights::classifier_dense_bias, &ModelWeights::classifier_bias}) {
    if (!Same(a.*vector, b.*vector)) return "bias of a classifier";
  }
  return "";
}

}  // namespace quintet
