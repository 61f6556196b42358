#include "engine/generation.h"

#include <algorithm>
#include <new>
#include <span>

#include "engine/beam_generation.h"
#include "engine/sampled_generation.h"
#include "kernels/base/check.h"

namespace quintet {
namespace {

WarpOptions WarpOptionsOf(const DecodingOptions& options) {
  WarpOptions warp = options.warp;
  // A warper (top-k, top-p and others) removes unlikely tokens from a row. In beam search every
  // warper keeps at least (number of eos ids + 1) tokens in each beam's row. Hence each beam can
  // continue with a token that is not an eos.
  const int32_t eos = static_cast<int32_t>(options.eos_token_ids.size());
  warp.keep = options.num_beams > 1 ? std::max(2, eos + 1) : 1;
  return warp;
}

}  // namespace

std::unique_ptr<Generation> Generation::Create(const Request& request, const Tokenizer* tokenizer,
                                               int64_t vocab, int64_t page_size) {
  if (request.decoding.num_beams > 1) {
    return std::make_unique<BeamGeneration>(request, tokenizer, vocab, page_size);
  }
  return std::make_unique<SampledGeneration>(request, tokenizer, vocab, page_size);
}

Generation::Generation(const Request& request, const Tokenizer* tokenizer, int64_t sequences,
                       int64_t vocab, int64_t page_size)
    : is_beam_(request.decoding.num_beams > 1),
      samples_(request.decoding.do_sample),
      wants_logprobs_(request.decoding.logprobs),
      // In beam search with stop strings the device cannot choose the next tokens: only the host
      // finds stop strings, and it must end a beam before the next candidates are ranked.
      device_can_select_(!wants_logprobs_ && (!is_beam_ || request.decoding.stop.empty())),
      length_(static_cast<int64_t>(request.decoding.prompt.size())),
      num_sequences_(sequences),
      vocab_(vocab),
      prompt_len_(length_),
      max_len_(prompt_len_ + request.decoding.max_new_tokens),
      processors_(request.decoding),
      request_(request),
      options_(request.decoding),
      warp_(WarpOptionsOf(request.decoding)),
      tokenizer_(tokenizer),
      // The last new token is never fed to the model; hence it needs no KV cache slot.
      layout_(prompt_len_, options_.max_new_tokens - 1, sequences, page_size) {}

void Generation::AssignPages(std::span<const int32_t> pages) {
  layout_.Assign(pages);
  tokens_.resize(num_sequences_ * max_len_);
  slots_.resize(num_sequences_ * max_len_);
  live_sequences_.resize(num_sequences_);
  for (int64_t seq = 0; seq < num_sequences_; ++seq) {
    live_sequences_[seq] = static_cast<int32_t>(seq);
    std::copy(options_.prompt.begin(), options_.prompt.end(), tokens_.begin() + seq * max_len_);
    layout_.FillSlots(seq, std::span(slots_).subspan(seq * max_len_, max_len_ - 1));
  }
}

int64_t Generation::generating_rows() const {
  return first_ || done_ ? 0 : static_cast<int64_t>(live_sequences_.size());
}

void Generation::AddTo(BatchBuilder* batch, int64_t prefill_tokens) {
  if (!first_) {
    for (int32_t seq : live_sequences_) {
      const size_t length = static_cast<size_t>(length_);
      batch->AddSequence(History(seq).last(1), {slots_.data() + seq * max_len_, length});
      batch->OutputLast(1);
    }
    return;
  }
  if (prefill_tokens == 0) return;
  batch->AddSequence(std::span(options_.prompt).subspan(prefilled_, prefill_tokens),
                     {slots_.data(), static_cast<size_t>(prefilled_ + prefill_tokens)});
  prefilled_ += prefill_tokens;
  if (prefilled_ == prompt_len_) batch->OutputLast(1);
}

void Generation::SetInFlight(BatchBuilder* batch, int64_t at, int32_t seq, int32_t token) const {
  QT_CHECK(CanScheduleAsync());
  batch->SetSequence(at, token, {slots_.data() + seq * max_len_, static_cast<size_t>(length_ + 1)});
}

void Generation::Join(BatchBuilder* batch, int64_t at) {
  QT_CHECK(CanJoinAsync());
  const size_t length = static_cast<size_t>(length_);
  if (first_) {
    prefilled_ = prompt_len_;
    return batch->SetSequence(at, options_.prompt.back(), {slots_.data(), length});
  }
  for (const int32_t seq : live_sequences_) {
    batch->SetSequence(at++, History(seq).back(), {slots_.data() + seq * max_len_, length});
  }
}

RowRules Generation::RulesAt(int64_t length, int32_t base) const {
  RowRules rules;
  if (processors_.Acts(length)) rules = processors_.RulesAt(length, base);
  rules.log_softmax = LogitsAreLogProbs(length) ? 1 : 0;
  rules.keep = options_.logprobs ? 1 : 0;
  return rules;
}

Draw Generation::DrawFor(int32_t seq) const {
  return {.seed = options_.seed, .sequence = static_cast<uint32_t>(seq), .warp = warp_};
}

void Generation::ApplyResults(const RowResults& results) {
  try {
    Select(results);
  } catch (const std::bad_alloc&) {
    out_of_memory_ = true;
  }
}

bool Generation::IsEos(int32_t token) const {
  const auto& eos = options_.eos_token_ids;
  return std::find(eos.begin(), eos.end(), token) != eos.end();
}

std::vector<std::pair<int32_t, float>> Generation::Alternatives(const RowResults& results,
                                                                int64_t row) const {
  std::vector<std::pair<int32_t, float>> alternatives;
  alternatives.reserve(options_.top_logprobs);
  for (int64_t i = 0; i < options_.top_logprobs; ++i) {
    const int32_t token = results.top_tokens[row * results.top_stride + i];
    if (token < 0) break;  // the vocabulary has fewer tokens than top_logprobs
    alternatives.emplace_back(
        token, results.top_logits[row * results.top_stride + i] - results.log_sums[row]);
  }
  return alternatives;
}

TokenLogProb Generation::MakeLogProb(const RowResults& results, int64_t row, int32_t token,
                                     float logit) const {
  return {token, logit - results.log_sums[row], Alternatives(results, row)};
}

GeneratedSequence Generation::Present(std::span<const int32_t> new_tokens) const {
  GeneratedSequence sequence;
  if (options_.echo) sequence.token_ids = options_.prompt;
  sequence.token_ids.insert(sequence.token_ids.end(), new_tokens.begin(), new_tokens.end());
  if (tokenizer_ != nullptr) {
    sequence.text = tokenizer_->Decode(sequence.token_ids, request_.skip_special_tokens);
  }
  return sequence;
}

}  // namespace quintet
