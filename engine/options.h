// Decoding options in two forms: DecodingRequest has the optional fields that a client sets (as in
// the proto); DecodingOptions is what the engine runs, resolved and checked. The value of each
// option comes from the request, else from generation_config.json, else from the built-in default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/sampling/sampling.h"
#include "models/config/config.h"
#include "models/config/generation_config.h"

namespace quintet {

// Options as a client sets them. Unset fields take their defaults. The field names are those of the
// proto and, with '-' instead of '_', of the command-line flags.
struct DecodingRequest : DecodingFields {
  std::optional<double> patience;
  std::optional<uint64_t> seed;
  std::vector<int32_t> decoder_prefix;  // ids after the start token
  std::vector<std::string> stop;
  std::optional<bool> include_stop, ignore_eos, logprobs, return_scores, echo;
  std::optional<int64_t> top_logprobs;
};

// Calls visit(name, field) for every field of `request` except decoder_prefix, which a client gives
// as text or ids. `name` is a const char*, `field` a pointer to the field.
template <typename Visit>
void VisitRequestFields(DecodingRequest* request, Visit visit) {
  VisitDecodingFields(
      request, [&visit](const char* name, auto* field, const FieldInFile&) { visit(name, field); });
  visit("patience", &request->patience);
  visit("seed", &request->seed);
  visit("stop", &request->stop);
  visit("include_stop", &request->include_stop);
  visit("ignore_eos", &request->ignore_eos);
  visit("logprobs", &request->logprobs);
  visit("return_scores", &request->return_scores);
  visit("echo", &request->echo);
  visit("top_logprobs", &request->top_logprobs);
}

// Options of a request after defaults have been filled in. Every field is in its documented range.
struct DecodingOptions {
  int32_t max_new_tokens = 256, min_new_tokens = 0;
  int32_t num_beams = 1, num_return_sequences = 1;
  double length_penalty = 1.0, patience = 1.0;
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  bool do_sample = false;
  uint64_t seed = 0;
  WarpOptions warp{.top_k = 50};  // used with do_sample; Generation sets `keep`
  float repetition_penalty = 1.0f;
  int32_t no_repeat_ngram_size = 0;
  std::vector<int32_t> suppress_tokens, begin_suppress_tokens;
  std::vector<std::vector<int32_t>> bad_words_ids;
  int32_t forced_bos_token_id = -1;
  std::vector<int32_t> forced_eos_token_ids;
  std::vector<int32_t> eos_token_ids;  // empty with ignore_eos
  int32_t pad_token_id = 0;
  // Decoder ids before the first new token: start token and prefix, or GPT-2's prompt.
  std::vector<int32_t> prompt;
  std::vector<std::string> stop;
  bool include_stop = false, logprobs = false, return_scores = false, echo = false;
  int32_t top_logprobs = 0;
};

// The numbers from `low` to `high`. `low` itself is in the range unless low_open is set; `high`
// itself is in the range unless high_open is set.
struct OptionRange {
  double low, high;
  bool low_open = false, high_open = false;

  bool Holds(double x) const {  // false for NaN
    return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high);
  }
  std::string Text() const;
};

// The decoding method (such as sampling) that must be on for an option to have an effect. kNothing:
// the option always has an effect.
enum class Needs : uint8_t { kNothing, kSampling, kBeams };

// Calls visit(name, field, value, range, needs) for every number of DecodingFields whose range is
// fixed. `name` is a const char*, `field` a pointer to member of DecodingFields, `value` a pointer
// to the option's value in `options`, `range` an OptionRange and `needs` a Needs.
template <typename Options, typename Visit>
void VisitNumbers(Options* options, Visit visit) {
  using F = DecodingFields;
  constexpr OptionRange kProbability{.low = 0, .high = 1, .low_open = true};
  constexpr OptionRange kBelowOne{.low = 0, .high = 1, .high_open = true};
  constexpr OptionRange kRepetition{.low = 0, .high = 10, .low_open = true};
  visit("temperature", &F::temperature, &options->warp.temperature, {0.01f, 100}, Needs::kSampling);
  visit("top_k", &F::top_k, &options->warp.top_k, {0, 2147483647}, Needs::kSampling);
  visit("top_p", &F::top_p, &options->warp.top_p, kProbability, Needs::kSampling);
  visit("typical_p", &F::typical_p, &options->warp.typical_p, kProbability, Needs::kSampling);
  visit("min_p", &F::min_p, &options->warp.min_p, kBelowOne, Needs::kSampling);
  visit("length_penalty", &F::length_penalty, &options->length_penalty, {-10, 10}, Needs::kBeams);
  visit("repetition_penalty", &F::repetition_penalty, &options->repetition_penalty, kRepetition,
        Needs::kNothing);
  visit("no_repeat_ngram_size", &F::no_repeat_ngram_size, &options->no_repeat_ngram_size, {0, 64},
        Needs::kNothing);
}

struct DecodingLimits {
  uint32_t max_new_tokens = 4096, max_beams = 32, max_samples = 16, max_input_tokens = 4096;
};

// Checks that the engine can run `options`: token ids are in [0, vocab); counts, sizes and floats
// are in their documented ranges. The engine checks every request with this function; results of
// ResolveDecoding always pass.
absl::Status CheckDecoding(const DecodingOptions& options, int64_t vocab);

// Resolves every option (from the request, else generation_config.json, else the built-in default)
// and checks it. A temperature of 0 in the request turns sampling off. `input`: the token ids of
// the request; for GPT-2, the prompt. An INVALID_ARGUMENT error names the field, the limit and the
// given value. A field of the request that has no effect, such as temperature without do_sample, is
// an error. A default of generation_config.json that has no effect is ignored. A default that does
// not fit the request's own fields is clamped, except that a max_length not longer than the
// decoder's prompt is an error, as in transformers.
absl::StatusOr<DecodingOptions> ResolveDecoding(const DecodingRequest& request,
                                                const GenerationDefaults& defaults,
                                                const ModelConfig& config,
                                                const DecodingLimits& limits,
                                                const std::vector<int32_t>& input);

}  // namespace quintet
