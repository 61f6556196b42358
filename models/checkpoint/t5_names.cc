#include "models/checkpoint/t5_names.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace quintet {
namespace {

struct Rename {
  std::string_view foreign, ours;
};

// Names of the tensors outside the layers' blocks.
constexpr Rename kWhole[] = {
    {"token_embd.weight", "shared.weight"},
    {"output.weight", "lm_head.weight"},
    {"enc.output_norm.weight", "encoder.final_layer_norm.weight"},
    {"dec.output_norm.weight", "decoder.final_layer_norm.weight"},
    {"token_embedding.weight", "shared.weight"},
    {"norm.weight", "encoder.final_layer_norm.weight"},
};

// These tables rename the part of a tensor's name between the block number and ".weight". kFfn
// stands for the feed-forward layer: layer.1 in the encoder, layer.2 in the decoder.
constexpr char kFfn[] = "FFN.";
constexpr Rename kGguf[] = {
    {"attn_q", "layer.0.SelfAttention.q"},
    {"attn_k", "layer.0.SelfAttention.k"},
    {"attn_v", "layer.0.SelfAttention.v"},
    {"attn_o", "layer.0.SelfAttention.o"},
    {"attn_rel_b", "layer.0.SelfAttention.relative_attention_bias"},
    {"attn_norm", "layer.0.layer_norm"},
    {"cross_attn_q", "layer.1.EncDecAttention.q"},
    {"cross_attn_k", "layer.1.EncDecAttention.k"},
    {"cross_attn_v", "layer.1.EncDecAttention.v"},
    {"cross_attn_o", "layer.1.EncDecAttention.o"},
    {"cross_attn_rel_b", "layer.1.EncDecAttention.relative_attention_bias"},
    {"cross_attn_norm", "layer.1.layer_norm"},
    {"ffn_gate", "FFN.DenseReluDense.wi_0"},
    {"ffn_up", "FFN.DenseReluDense.wi_1"},
    {"ffn_down", "FFN.DenseReluDense.wo"},
    {"ffn_norm", "FFN.layer_norm"},
};
constexpr Rename kWan[] = {
    {"attn.q", "layer.0.SelfAttention.q"},
    {"attn.k", "layer.0.SelfAttention.k"},
    {"attn.v", "layer.0.SelfAttention.v"},
    {"attn.o", "layer.0.SelfAttention.o"},
    {"pos_embedding.embedding", "layer.0.SelfAttention.relative_attention_bias"},
    {"norm1", "layer.0.layer_norm"},
    {"ffn.gate.0", "FFN.DenseReluDense.wi_0"},
    {"ffn.fc1", "FFN.DenseReluDense.wi_1"},
    {"ffn.fc2", "FFN.DenseReluDense.wo"},
    {"norm2", "FFN.layer_norm"},
};

}  // namespace

std::string HuggingFaceT5Name(std::string_view name) {
  const std::string unchanged(name);
  for (const Rename& rename : kWhole) {
    if (name == rename.foreign) return std::string(rename.ours);
  }
  std::string_view rest = name;
  const auto consume = [&rest](std::string_view prefix) {
    if (!rest.starts_with(prefix)) return false;
    rest.remove_prefix(prefix.size());
    return true;
  };
  const bool decoder = consume("dec.blk.");
  const bool gguf = decoder || consume("enc.blk.");
  if (!gguf && !consume("blocks.")) return unchanged;
  const size_t dot = rest.find('.');
  constexpr std::string_view kSuffix = ".weight";
  if (dot == std::string_view::npos || !rest.ends_with(kSuffix)) return unchanged;
  const std::string block(rest.substr(0, dot));
  const std::string_view tensor = rest.substr(dot + 1, rest.size() - dot - 1 - kSuffix.size());
  if (block.empty() || !std::all_of(block.begin(), block.end(), absl::ascii_isdigit)) {
    return unchanged;
  }
  const auto find = [&](const auto& renames) {
    for (const Rename& rename : renames) {
      if (tensor == rename.foreign) return std::string(rename.ours);
    }
    return std::string();
  };
  const std::string ours = gguf ? find(kGguf) : find(kWan);
  if (ours.empty()) return unchanged;
  return absl::StrCat(decoder ? "decoder" : "encoder", ".block.", block, ".",
                      absl::StrReplaceAll(ours, {{kFfn, decoder ? "layer.2." : "layer.1."}}),
                      kSuffix.data());
}

}  // namespace quintet
