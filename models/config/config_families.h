// Functions that read the fields of config.json that differ between model families: one function
// per family. ParseModelConfig calls the function of the model's family once the family and the
// head are known. Errors are stored in fields->status().
#pragma once

#include <optional>
#include <string>

#include "models/config/config.h"
#include "models/config/config_fields.h"

namespace quintet {

// Reads the fields of T5, mT5, UMT5 and LongT5 (models/config/t5.cc).
void ReadT5Fields(ConfigFields* fields, ModelConfig* config);
// Reads the fields of FAT5 (models/config/fat5.cc).
void ReadFat5Fields(ConfigFields* fields, ModelConfig* config);
// Reads the fields of GPT-2 (models/config/gpt2.cc).
void ReadGpt2Fields(ConfigFields* fields, ModelConfig* config);

// Defaults of T5 and FAT5 for fields that are absent from config.json. mT5 and UMT5 have other
// defaults (models/config/t5.cc).
struct T5Defaults {
  int64_t vocab = 32128, d_ff = 2048, layers = 6, heads = 8;
};
// Reads the fields that T5 and FAT5 share: sizes, epsilon and position buckets.
void ReadT5Sizes(const T5Defaults& defaults, ConfigFields* fields, ModelConfig* config);

// Returns the activation with this name in Hugging Face's config.json; nullopt if not supported.
std::optional<Activation> ActivationByName(const std::string& name);

// Upper bounds that keep all products of sizes far from overflow. kMaxHeadDim is the largest head
// dimension that the attention kernels support.
constexpr int64_t kMaxVocab = 1 << 24, kMaxWidth = 1 << 16, kMaxHeads = 4096, kMaxHeadDim = 256,
                  kMaxLayers = 1024, kMaxPositions = 1 << 24;
// Largest local_radius and global_block_size of LongT5: no input has more tokens.
constexpr int64_t kMaxLocalRadius = kMaxPositions, kMaxGlobalBlock = kMaxPositions;

}  // namespace quintet
