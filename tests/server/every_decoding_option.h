// A value for every decoding option.
#pragma once

namespace quintet {

// The text format of a v1::DecodingOptions in which every field is set. New fields must be added.
inline constexpr char kEveryDecodingOption[] = R"(
    max_new_tokens: 1 min_new_tokens: 2 num_beams: 3 num_return_sequences: 4 length_penalty: 0.6
    early_stopping: EARLY_STOPPING_NEVER patience: 7.5 do_sample: true seed: 18446744073709551615
    temperature: 10.5 top_k: 11 top_p: 12.5 typical_p: 13.5 min_p: 14.5 repetition_penalty: 15.5
    no_repeat_ngram_size: 16 suppress_tokens: [17, 4294967295] begin_suppress_tokens: 18
    bad_words_ids { ids: [19, 20] } bad_words_ids { ids: 21 } bad_words_ids {}
    forced_bos_token_id: 22 forced_eos_token_ids: [23, 24] eos_token_ids: 25
    decoder_start_token_id: 26 pad_token_id: 4294967295 decoder_prefix { token_ids { ids: 28 } }
    stop: ["a", "b"] include_stop: true ignore_eos: true logprobs: true top_logprobs: 30
    return_scores: true echo: true return_text: false return_token_ids: false
    skip_special_tokens: false)";

}  // namespace quintet
