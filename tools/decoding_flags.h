// The decoding fields as flags: one for each field of DecodingRequest, its name with dashes.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "engine/options.h"
#include "models/tokenizer.h"

namespace quintet {

struct DecodingFlags {
  DecodingRequest request;
  std::string bad_words, early_stopping, prefix_text;
  std::vector<int32_t> prefix_ids;
  bool do_sample = false, include_stop = false, ignore_eos = false, logprobs = false;
  bool return_scores = false, echo = false;
  DecodingLimits limits;
};
void AddDecodingFlags(CLI::App* command, DecodingFlags* flags);
// Parts of them: how tokens are drawn (the seed aside), and the rules that they follow.
void AddSamplingFlags(CLI::App* command, DecodingFlags* flags);
void AddRuleFlags(CLI::App* command, DecodingFlags* flags);

// The request that the flags describe. INVALID_ARGUMENT names a flag that makes no sense by itself;
// ranges and combinations are checked by ResolveDecoding. `tokenizer` may be null when no prefix
// text is given.
absl::StatusOr<DecodingRequest> BuildDecodingRequest(const DecodingFlags& flags,
                                                     const Tokenizer* tokenizer);

}  // namespace quintet
