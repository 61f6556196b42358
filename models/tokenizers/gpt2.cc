#include "models/tokenizers/gpt2.h"

#include "models/tokenizers/fields.h"

namespace quintet {

using Json = nlohmann::json;

bool IsBpe(const Json& model) {
  const Json* type = FindField(model, "type");
  if (type != nullptr) return EqualsString(*type, "BPE");
  return FindField(model, "merges") != nullptr;  // older files have no type
}

void RebuildAsGpt2(bool add_prefix_space, Json* tokenizer) {
  Json& model = (*tokenizer)["model"];
  for (const char* field : {"dropout", "unk_token"}) model[field] = nullptr;
  for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"}) model[field] = "";
  for (const char* field : {"fuse_unk", "byte_fallback", "ignore_merges"}) model[field] = false;
  (*tokenizer)["normalizer"] = nullptr;
  (*tokenizer)["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}};
  (*tokenizer)["decoder"] = {{"type", "ByteLevel"}};
}

void SetGpt2Defaults(TokenizerSettings* settings) {
  for (auto* token : {&settings->bos, &settings->eos, &settings->unk}) {
    if (!*token) *token = SpecialToken("<|endoftext|>");
  }
}

}  // namespace quintet
