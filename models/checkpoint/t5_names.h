// Names of T5's tensors in programs other than transformers.
#pragma once

#include <string>
#include <string_view>

namespace quintet {

// Returns Hugging Face's name for a tensor of a T5, given its name in GGUF files (llama.cpp:
// "enc.blk.0.attn_q.weight") or in the files of Wan ("blocks.0.attn.q.weight"). Other names are
// returned unchanged.
std::string HuggingFaceT5Name(std::string_view name);

}  // namespace quintet
