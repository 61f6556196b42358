// The fields of config.json that differ between families: one reader each, called by
// ParseModelConfig once the family and the head are known. Whatever is wrong ends up in
// fields->status().
#pragma once

#include <optional>
#include <string>

#include "models/config.h"
#include "models/config_fields.h"

namespace quintet {

// T5, mT5, UMT5 (models/config_t5.cc).
void ReadT5Fields(ConfigFields* fields, ModelConfig* config);
// FAT5 (models/config_fat5.cc).
void ReadFat5Fields(ConfigFields* fields, ModelConfig* config);
// GPT-2 (models/config_gpt2.cc).
void ReadGpt2Fields(ConfigFields* fields, ModelConfig* config);

// What the T5 family and FAT5 share: sizes, epsilon, buckets; with the family's own defaults.
struct T5Defaults {
  int64_t vocab = 32128, d_ff = 2048, layers = 6, heads = 8;
};
void ReadT5Sizes(const T5Defaults& defaults, ConfigFields* fields, ModelConfig* config);

// The function of an activation by its Hugging Face name; nullopt when the engine has none.
std::optional<Activation> ActivationByName(const std::string& name);

// Upper bounds that keep every product of sizes far from overflow. kMaxHeadDim: the widest that
// attention computes.
constexpr int64_t kMaxVocab = 1 << 24, kMaxWidth = 1 << 16, kMaxHeads = 4096, kMaxHeadDim = 256,
                  kMaxLayers = 1024, kMaxPositions = 1 << 24;

}  // namespace quintet
