#include "models/checkpoint/t5_names.h"

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("Names of GGUF files and of Wan become Hugging Face's", "[t5_names]") {
  CHECK(HuggingFaceT5Name("token_embd.weight") == "shared.weight");
  CHECK(HuggingFaceT5Name("output.weight") == "lm_head.weight");
  CHECK(HuggingFaceT5Name("enc.output_norm.weight") == "encoder.final_layer_norm.weight");
  CHECK(HuggingFaceT5Name("enc.blk.12.attn_rel_b.weight") ==
        "encoder.block.12.layer.0.SelfAttention.relative_attention_bias.weight");
  CHECK(HuggingFaceT5Name("enc.blk.0.ffn_down.weight") ==
        "encoder.block.0.layer.1.DenseReluDense.wo.weight");
  CHECK(HuggingFaceT5Name("dec.blk.3.ffn_norm.weight") ==
        "decoder.block.3.layer.2.layer_norm.weight");
  CHECK(HuggingFaceT5Name("dec.blk.3.cross_attn_k.weight") ==
        "decoder.block.3.layer.1.EncDecAttention.k.weight");
  CHECK(HuggingFaceT5Name("blocks.7.ffn.gate.0.weight") ==
        "encoder.block.7.layer.1.DenseReluDense.wi_0.weight");
  CHECK(HuggingFaceT5Name("norm.weight") == "encoder.final_layer_norm.weight");
}

TEST_CASE("Other names are unchanged", "[t5_names]") {
  for (const char* name :
       {"", "x", "encoder.block.0.layer.0.SelfAttention.q.weight", "enc.blk.", "enc.blk.0",
        "enc.blk.weight", "enc.blk.0.weight", "enc.blk..attn_q.weight", "enc.blk.x.attn_q.weight",
        "enc.blk.0.attn_q.bias", "blocks.0.attn_q.weight", "enc.blk.0.attn.q.weight"}) {
    CHECK(HuggingFaceT5Name(name) == name);
  }
}

}  // namespace
}  // namespace quintet
