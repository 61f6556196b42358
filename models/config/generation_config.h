// Decoding defaults of a checkpoint. They are read from generation_config.json or, if there is
// none, from config.json. This header lists the fields that Quintet reads (DecodingFields, which a
// request can also set) and those that it rejects (kUnsupportedFields).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quintet {

// The values of Hugging Face's option early_stopping: false, true and "never".
enum class EarlyStopping : uint8_t { kHeuristic, kFirst, kNever };

// Decoding options that both a request and generation_config.json can set. An option that is not
// set is nullopt or empty.
struct DecodingFields {
  std::optional<int64_t> max_new_tokens, min_new_tokens, num_beams, num_return_sequences;
  std::optional<double> length_penalty;
  std::optional<EarlyStopping> early_stopping;
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, typical_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, no_repeat_ngram_size;
  std::optional<int64_t> forced_bos_token_id, decoder_start_token_id, pad_token_id;
  std::vector<uint32_t> eos_token_ids, forced_eos_token_ids;
  std::vector<uint32_t> suppress_tokens, begin_suppress_tokens;
  std::vector<std::vector<uint32_t>> bad_words_ids;
};

// Name and range of an option in generation_config.json. A number outside [low, high] is an error
// at load. This range may be wider than the option's exact range, which is checked only when a
// request uses the value (engine/options.h).
struct FieldInFile {
  const char* name = nullptr;  // null: named as in the proto
  double low = 0;
  std::optional<double> high;  // unset: 2^31 for integers, 1e9 for other numbers
};

// Calls visit(name, field, in_file) for every decoding option: its name in the proto (const char*),
// a pointer to the member of `fields`, and its FieldInFile.
template <typename Visit>
void VisitDecodingFields(DecodingFields* fields, Visit visit) {
  constexpr double kMaxId = 2147483647;
  visit("max_new_tokens", &fields->max_new_tokens, {.low = 1});
  visit("min_new_tokens", &fields->min_new_tokens, {});
  visit("num_beams", &fields->num_beams, {.low = 1});
  visit("num_return_sequences", &fields->num_return_sequences, {.low = 1});
  visit("length_penalty", &fields->length_penalty, {.low = -1e9});
  visit("temperature", &fields->temperature, {});
  visit("top_p", &fields->top_p, {.high = 1});
  visit("typical_p", &fields->typical_p, {.high = 1});
  visit("min_p", &fields->min_p, {.high = 1});
  visit("repetition_penalty", &fields->repetition_penalty, {});
  visit("top_k", &fields->top_k, {});
  visit("no_repeat_ngram_size", &fields->no_repeat_ngram_size, {});
  visit("do_sample", &fields->do_sample, {});
  visit("early_stopping", &fields->early_stopping, {});
  visit("forced_bos_token_id", &fields->forced_bos_token_id, {.high = kMaxId});
  visit("decoder_start_token_id", &fields->decoder_start_token_id, {.high = kMaxId});
  visit("pad_token_id", &fields->pad_token_id, {.high = kMaxId});
  visit("eos_token_ids", &fields->eos_token_ids, {.name = "eos_token_id"});
  visit("forced_eos_token_ids", &fields->forced_eos_token_ids, {.name = "forced_eos_token_id"});
  visit("suppress_tokens", &fields->suppress_tokens, {});
  visit("begin_suppress_tokens", &fields->begin_suppress_tokens, {});
  visit("bad_words_ids", &fields->bad_words_ids, {});
}

// A field of generation_config.json that changes what transformers generates and that Quintet does
// not support. It is accepted if it is null or equals `neutral`, a JSON value. Fields that affect
// only speed (use_cache, prompt_lookup_num_tokens, ...) are not listed in kUnsupportedFields.
struct UnsupportedField {
  const char* name;
  const char* neutral;
};
inline constexpr UnsupportedField kUnsupportedFields[] = {
    {"constraints", "null"},
    {"diversity_penalty", "0"},
    {"dola_layers", "null"},
    {"encoder_no_repeat_ngram_size", "0"},
    {"encoder_repetition_penalty", "1"},
    {"epsilon_cutoff", "0"},
    {"eta_cutoff", "0"},
    {"exponential_decay_length_penalty", "null"},
    {"force_words_ids", "null"},
    {"guidance_scale", "1"},
    {"is_assistant", "false"},
    {"max_time", "null"},
    {"num_beam_groups", "1"},
    {"penalty_alpha", "0"},
    {"remove_invalid_values", "false"},
    {"renormalize_logits", "false"},
    {"sequence_bias", "null"},
    {"stop_strings", "null"},
    {"token_healing", "false"},
    {"top_h", "null"},
    {"watermarking_config", "null"},
};

// The contents of generation_config.json. A max_length of 20, Hugging Face's old default, is
// ignored.
struct GenerationDefaults : DecodingFields {
  std::optional<int64_t> max_length, min_length;  // tokens, including the decoder's prompt
  // One message "FILE: FIELD is VALUE" for each of kUnsupportedFields that is in the file and is
  // neither null nor equal to its `neutral` value.
  std::vector<std::string> unsupported_fields;
};
absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& directory);
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(const std::string& json,
                                                           const std::string& where);

// Returns UNIMPLEMENTED if the defaults have unsupported_fields. The message lists these fields and
// names the command-line flag with which they are ignored. To be called only for models that
// generate text.
absl::Status CheckGenerationSupported(const GenerationDefaults& defaults);
inline constexpr char kIgnoreGenerationFields[] = "--ignore-generation-fields";

}  // namespace quintet
