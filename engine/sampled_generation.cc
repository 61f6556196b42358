#include "engine/sampled_generation.h"

#include <algorithm>
#include <span>

namespace quintet {

SampledGeneration::SampledGeneration(const Request& request, const Tokenizer* tokenizer,
                                     int64_t vocab, int64_t page_size)
    : Generation(request, tokenizer, request.decoding.num_return_sequences, vocab, page_size),
      samples_(request.decoding.num_return_sequences) {
  top_k_size_ = options_.do_sample ? 0 : 1;
  const bool step_by_step = request.stream || !options_.stop.empty();
  if (!step_by_step) return;
  for (Sample& sample : samples_) {
    sample.text = std::make_unique<TextStream>(
        tokenizer, TextOptions{request.skip_special_tokens, options_.include_stop, options_.stop});
    if (!options_.echo) continue;
    for (int32_t id : options_.prompt) sample.text->PushEcho(id);
  }
}

bool SampledGeneration::Accept(int64_t seq, int32_t token) {
  Sample& sample = samples_[seq];
  Append(seq, token);
  ++new_tokens_;
  const bool stops = !options_.stop.empty();
  const bool stopped = stops && sample.text->Push(token);
  if (IsEos(token)) {
    sample.reason = FinishReason::kEos;
  } else if (stopped) {
    sample.reason = FinishReason::kStop;
  } else if (length_ + 1 < max_len_) {
    return false;
  }
  if (stops && sample.text->Finish()) sample.reason = FinishReason::kStop;
  sample.length = length_ + 1;
  return true;
}

void SampledGeneration::Select(const RowResults& results) {
  size_t going = 0, entry = 0;
  for (size_t i = 0; i < live_sequences_.size(); ++i, ++entry) {
    const int32_t seq = live_sequences_[i];
    // Skips results of sequences that have ended: with async scheduling, a step has results of
    // those that ended after it was enqueued.
    while (results.sequences[entry] != seq) ++entry;
    const int64_t at = static_cast<int64_t>(entry) * results.token_stride;
    const int32_t token = results.tokens[at];
    if (options_.logprobs) {
      const int64_t row = first_ ? 0 : static_cast<int64_t>(entry);
      samples_[seq].logprobs.push_back(MakeLogProb(results, row, token, results.token_logits[at]));
    }
    if (!Accept(seq, token)) live_sequences_[going++] = seq;
  }
  live_sequences_.resize(going);
  first_ = false;
  ++length_;
  done_ = live_sequences_.empty();
}

void SampledGeneration::CatchUpText(int64_t seq) {
  Sample& sample = samples_[seq];
  if (sample.text == nullptr || !options_.stop.empty()) return;
  const int64_t tokens = (sample.length > 0 ? sample.length : length_) - prompt_len_;
  const int32_t* chosen = tokens_.data() + seq * max_len_ + prompt_len_;
  while (sample.in_text < tokens) sample.text->Push(chosen[sample.in_text++]);
  if (sample.length > 0) sample.text->Finish();
}

void SampledGeneration::Deliver(ResponseSink* sink) {
  if (!request_.stream) return;
  for (int64_t seq = 0; seq < num_sequences_; ++seq) {
    CatchUpText(seq);
    const TextStream::Chunk chunk = samples_[seq].text->Take();
    if (chunk.ids.empty() && chunk.text.empty()) continue;
    sink->OnTokens(static_cast<int>(seq), chunk.ids, chunk.text);
  }
}

std::vector<GeneratedSequence> SampledGeneration::TakeSequences() {
  std::vector<GeneratedSequence> sequences;
  for (int64_t seq = 0; seq < num_sequences_; ++seq) {
    CatchUpText(seq);
    Sample& sample = samples_[seq];
    const std::span<const int32_t> new_tokens{tokens_.data() + seq * max_len_ + prompt_len_,
                                              static_cast<size_t>(sample.length - prompt_len_)};
    GeneratedSequence sequence = Present(new_tokens);
    if (sample.text != nullptr) {
      sequence.text = std::string(sample.text->FinalText());
      if (sample.text->stopped()) sequence.matched_stop = sample.text->matched_stop();
    }
    sequence.logprobs = std::move(sample.logprobs);
    sequence.finish_reason = sample.reason;
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

}  // namespace quintet
