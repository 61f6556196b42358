#include "tests/engine/fake_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

namespace quintet {
namespace {

constexpr int64_t kWidth = 4;  // floats that hold one hash, 16 bits each

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void Pack(uint64_t hash, float* out) {
  for (int i = 0; i < kWidth; ++i) out[i] = static_cast<float>(hash >> (16 * i) & 0xFFFF);
}

uint64_t Unpack(const float* in) {
  uint64_t hash = 0;
  for (int i = 0; i < kWidth; ++i) hash |= static_cast<uint64_t>(in[i]) << (16 * i);
  return hash;
}

constexpr uint64_t kNoHistory = 7, kNoSource = 11;

// Mixes the adapter of a sequence into `hash`. Without an adapter (-1), returns `hash` unchanged.
uint64_t Adapted(uint64_t hash, int32_t adapter) {
  return adapter < 0 ? hash : Mix(hash, static_cast<uint64_t>(adapter));
}

}  // namespace

FakeModel::FakeModel(const FakeOptions& options, ThreadPool* pool)
    : Model(ModelConfig(), options.limits, Stream(pool, options.device)),
      options_(options),
      layout_(std::make_shared<const AdapterLayout>()),
      in_slot_(
          static_cast<size_t>(options.adapter_slots > 0 ? options.adapter_slots : options.adapters),
          -1),
      adapter_slots_(static_cast<int64_t>(in_slot_.size()), layout_.get(),
                     [this](int32_t slot, const AdapterHandle& adapter) {
                       const auto at = std::find(adapters_.begin(), adapters_.end(), adapter);
                       in_slot_[slot] = static_cast<int32_t>(at - adapters_.begin());
                     }) {
  for (int64_t i = 0; i < options.adapters; ++i) {
    const auto adapter = std::make_shared<PackedAdapter>();
    adapter->layout = layout_;
    adapter->source.name = std::to_string(i);
    adapters_.push_back(adapter);
  }
  config_.family = options.causal ? Family::kGpt2 : options.family;
  config_.head = options.head;
  config_.vocab = options.vocab;
  config_.d_model = kWidth;
  config_.encoder_layers = options.causal ? 0 : 2;
  config_.decoder_layers = 2;
  config_.labels = options.labels;
  config_.max_positions = options.max_positions;
  config_.pad_id = 0;
  config_.decoder_start_id = options.causal ? -1 : 0;
  config_.eos_ids = {1};
  slots_.resize(options.limits.cache_pages * options.limits.page_size);
  chosen_.resize(options.limits.max_step_sequences);
  parents_.resize(options.limits.max_step_sequences);
  slot_tokens_.resize(slots_.size());
}

void FakeModel::BeginEncode(const EncodeBatch& batch) {
  const auto [tokens, offsets] = std::pair(batch.tokens, batch.offsets);
  Expect(static_cast<int64_t>(tokens.size()) <= limits_.max_encode_tokens,
         "encode batch too large");
  Expect(offsets.front() == 0 && offsets.back() == static_cast<int32_t>(tokens.size()), "offsets");
  encode_tokens_.assign(tokens.begin(), tokens.end());
  encode_offsets_.assign(offsets.begin(), offsets.end());
  const auto copy = [](std::span<const int32_t> from, std::vector<int32_t>* to) {
    to->assign(from.begin(), from.end());
  };
  CheckAdapters(batch.adapters, offsets.size() - 1);
  copy(batch.adapters, &encode_adapters_);
  copy(batch.positions, &encode_positions_);
  copy(batch.lower_begin, &lower_begin_);
  copy(batch.upper_end, &upper_end_);
  both_ways_ = batch.bidirectional;
  Expect(options_.causal || (encode_positions_.empty() && lower_begin_.empty() &&
                             upper_end_.empty() && !both_ways_),
         "an encoder takes no mask");
  encode_left_ = static_cast<int64_t>(tokens.size()) *
                 (options_.causal ? config_.decoder_layers : config_.encoder_layers);
  ++encode_batches;
  encoded_tokens += static_cast<int64_t>(tokens.size());
}

bool FakeModel::EncodeSlice(int64_t work) {
  Expect(encode_left_ > 0, "no encoding under way");
  ++slices;
  const int64_t done = std::min(encode_left_, work);
  Spend(done * options_.encode_us);
  encode_left_ -= done;
  if (encode_left_ > 0) return false;
  encoder_states_.resize(encode_tokens_.size() * kWidth);
  for (size_t s = 0; s + 1 < encode_offsets_.size(); ++s) {
    const std::vector<int32_t> source(encode_tokens_.begin() + encode_offsets_[s],
                                      encode_tokens_.begin() + encode_offsets_[s + 1]);
    for (size_t i = 0; i < source.size(); ++i) {
      const uint64_t state = options_.causal
                                 ? CausalStateOf(encode_offsets_[s], encode_offsets_[s + 1], i)
                                 : EncoderStateOf(source, i, AdapterOf(encode_adapters_, s));
      Pack(state, &encoder_states_[(encode_offsets_[s] + i) * kWidth]);
    }
  }
  return true;
}

// Returns the hash of the tokens that an encoder row attends to. Its sequence consists of the
// tokens [begin, end) of the encoder batch, and `row` is its index in the sequence.
uint64_t FakeModel::CausalStateOf(size_t begin, size_t end, size_t row) {
  std::vector<int32_t> history;
  const int32_t at = static_cast<int32_t>(row);
  for (size_t j = begin; j < end; ++j) {
    if (!both_ways_ && j - begin > row) break;
    if (!lower_begin_.empty() && at >= lower_begin_[j]) continue;
    if (!upper_end_.empty() && at < upper_end_[j]) continue;
    history.push_back(encode_tokens_[j]);
  }
  // Unless attention is bidirectional, a row at position p can attend to at most p + 1 tokens: to
  // itself and to those at the positions before it.
  const int32_t position = encode_positions_.empty() ? at : encode_positions_[begin + row];
  Expect(both_ways_ || position + 1 >= static_cast<int32_t>(history.size()), "position of a row");
  const auto next =
      std::upper_bound(encode_offsets_.begin(), encode_offsets_.end(), static_cast<int32_t>(begin));
  const auto input = static_cast<size_t>(next - encode_offsets_.begin()) - 1;
  uint64_t hash = Adapted(kNoHistory, AdapterOf(encode_adapters_, input));
  for (const int32_t token : history) hash = Mix(hash, token);
  return Mix(hash, kNoSource);
}

void FakeModel::CheckAdapters(std::span<const int32_t> adapters, size_t count) {
  Expect(adapters.empty() || adapters.size() == count, "adapters");
  for (const int32_t slot : adapters) {
    Expect(slot >= -1 && slot < static_cast<int32_t>(in_slot_.size()) &&
               (slot < 0 || in_slot_[slot] >= 0),
           "slot of an adapter");
  }
}

int32_t FakeModel::AdapterOf(std::span<const int32_t> slots, size_t i) const {
  return slots.empty() || slots[i] < 0 ? -1 : in_slot_[slots[i]];
}

Tensor FakeModel::EncodedRows(std::span<const int32_t> rows) {
  Expect(static_cast<int64_t>(rows.size()) <= limits_.max_step_tokens, "too many rows taken");
  taken_states_.clear();
  for (const int32_t row : rows) {
    const auto from = encoder_states_.begin() + row * kWidth;
    taken_states_.insert(taken_states_.end(), from, from + kWidth);
  }
  return Tensor::F32(taken_states_.data(), {static_cast<int64_t>(rows.size()), kWidth});
}

Tensor FakeModel::EncodedStates() const {
  return Tensor::F32(encoder_states_.data(),
                     {static_cast<int64_t>(encoder_states_.size()) / kWidth, kWidth});
}

void FakeModel::ProjectCross(const Tensor& states, int64_t position, std::span<const int32_t> slots,
                             std::span<const int32_t> adapters) {
  CheckAdapters(adapters, slots.size());
  Spend(states.dim[0] * options_.project_us);
  Expect(states.dim[0] == static_cast<int64_t>(slots.size()), "slots of the source");
  // `states` may be a part of the encoder batch and hold the rows of several of its sequences.
  const float* own = encoder_states_.data();
  const bool encoded = states.f32() >= own && states.f32() < own + encoder_states_.size();
  for (size_t i = 0; i < slots.size(); ++i) {
    int64_t at = position + static_cast<int64_t>(i);
    if (encoded) {
      const int64_t row = (states.f32() - own) / kWidth + static_cast<int64_t>(i);
      const auto next = std::upper_bound(encode_offsets_.begin(), encode_offsets_.end(), row);
      at = row - next[-1];
      Expect(i > 0 || at == position, "position of the first state");
    }
    const uint64_t state = Unpack(states.f32() + i * kWidth);
    slots_.at(slots[i]) = {true, at, 0, Adapted(state, AdapterOf(adapters, i))};
  }
}

uint64_t FakeModel::ReadSource(const DecodeBatch& batch, size_t group) {
  uint64_t hash = kNoSource;
  for (int32_t i = 0; i < batch.source_lens[group]; ++i) {
    const Slot& slot = slots_.at(batch.source_slots[group * batch.source_slots_stride + i]);
    Expect(slot.source && slot.position == i, "source slot holds something else");
    hash = Mix(hash, slot.after);
  }
  return hash;
}

uint64_t FakeModel::ReadHistory(const DecodeBatch& batch, size_t sequence, int64_t length) {
  uint64_t hash = Adapted(kNoHistory, AdapterOf(batch.adapters, sequence));
  for (int64_t t = 0; t < length; ++t) {
    const Slot& slot = slots_.at(batch.slots[sequence * batch.slots_stride + t]);
    Expect(!slot.source && slot.position == t && slot.before == hash,
           "slot does not hold this history");
    hash = slot.after;
  }
  return hash;
}

Tensor FakeModel::Decode(const DecodeBatch& given) {
  ++decodes;
  DecodeBatch batch = given;
  const size_t n = batch.kv_lens.size();
  step_slots_.assign(batch.slots, batch.slots + static_cast<int64_t>(n) * batch.slots_stride);
  batch.slots = step_slots_.data();
  ReorderBeams({.slots = batch.slots,
                .slots_stride = batch.slots_stride,
                .lens = batch.kv_lens,
                .moves = batch.moves,
                .parents = parent_beams()},
               stream());
  moves += static_cast<int64_t>(batch.moves.size());
  Spend(options_.decode_us + static_cast<int64_t>(batch.tokens.size()) * options_.token_us);
  most_tokens = std::max<int64_t>(most_tokens, batch.tokens.size());
  most_sequences = std::max<int64_t>(most_sequences, n);
  Expect(static_cast<int64_t>(batch.tokens.size()) <= limits_.max_step_tokens, "too many tokens");
  Expect(static_cast<int64_t>(n) <= limits_.max_step_sequences, "too many sequences");
  Expect(batch.offsets.size() == n + 1 &&
             batch.offsets[n] == static_cast<int32_t>(batch.tokens.size()),
         "offsets");
  Expect(options_.causal || (!batch.group_offsets.empty() &&
                             batch.group_offsets.back() == static_cast<int32_t>(n)),
         "groups do not cover the sequences");
  for (size_t group = 1; group < batch.group_offsets.size(); ++group) {
    Expect(batch.group_offsets[group - 1] < batch.group_offsets[group],
           "a group without sequences");
  }
  CheckAdapters(batch.adapters, n);
  std::vector<uint64_t> states(batch.tokens.size());
  std::set<int32_t> written;
  int32_t latest = -1;  // slot of the row before
  size_t group = 0;
  for (size_t s = 0; s < n; ++s) {
    uint64_t source = kNoSource;
    if (!options_.causal) {
      while (static_cast<int32_t>(s) >= batch.group_offsets[group + 1]) ++group;
      source = ReadSource(batch, group);
    }
    const int64_t count = batch.offsets[s + 1] - batch.offsets[s];
    int64_t position = batch.kv_lens[s] - count;
    uint64_t hash = ReadHistory(batch, s, position);
    for (int32_t i = batch.offsets[s]; i < batch.offsets[s + 1]; ++i, ++position) {
      const int32_t slot = batch.slots[s * batch.slots_stride + position];
      // Two beams may write their new tokens to the same cache slot only if both have the same new
      // token and the same history.
      const bool shared = i > 0 && slot == latest && batch.tokens[i] >= 0 &&
                          batch.tokens[i] == batch.tokens[i - 1] && slots_.at(slot).before == hash;
      Expect(shared || written.insert(slot).second, "two tokens in one slot");
      latest = slot;
      const int32_t given = batch.tokens[i];
      const int32_t token = given >= 0 ? given : chosen_.at(-1 - given);
      if (given < 0) ++async_scheduling_tokens;
      const uint64_t after = Mix(hash, token);
      slot_tokens_.at(slot) = token;
      slots_.at(slot) = {false, position, hash, after};
      hash = after;
      states[i] = Mix(hash, source);
    }
  }
  // The new keys must not overwrite slots that other sequences read.
  for (size_t s = 0; s < n; ++s) ReadHistory(batch, s, batch.kv_lens[s]);
  step_lens_.assign(batch.kv_lens.begin(), batch.kv_lens.end());
  step_stride_ = batch.slots_stride;
  decoder_states_.resize(batch.output_rows.size() * kWidth);
  for (size_t i = 0; i < batch.output_rows.size(); ++i) {
    Expect(i == 0 || batch.output_rows[i] > batch.output_rows[i - 1], "output rows ascend");
    Pack(states.at(batch.output_rows[i]), &decoder_states_[i * kWidth]);
  }
  return Tensor::F32(decoder_states_.data(),
                     {static_cast<int64_t>(batch.output_rows.size()), kWidth});
}

void FakeModel::Logits(const Tensor& states, const Tensor& logits) {
  for (int64_t r = 0; r < states.dim[0]; ++r) {
    const std::vector<float> row = LogitsOf(Unpack(states.f32() + r * kWidth));
    std::copy(row.begin(), row.end(), logits.f32() + r * logits.stride[0]);
  }
}

void FakeModel::TargetLogProbs(const Tensor& states, const Tensor& targets, const Tensor& log_probs,
                               const Tensor& top_log_probs, const Tensor& top_tokens) {
  for (int64_t r = 0; r < states.dim[0]; ++r) {
    std::vector<float> row = LogitsOf(Unpack(states.f32() + r * kWidth));
    double sum = 0.0;
    for (float x : row) sum += std::exp(static_cast<double>(x));
    for (float& x : row) x = static_cast<float>(x - std::log(sum));
    log_probs.f32()[r] = row[targets.as<int32_t>()[r]];
    if (!top_tokens.defined()) continue;
    std::vector<int32_t> order(row.size());
    for (size_t v = 0; v < order.size(); ++v) order[v] = static_cast<int32_t>(v);
    std::stable_sort(order.begin(), order.end(),
                     [&row](int32_t a, int32_t b) { return row[a] > row[b]; });
    for (int64_t i = 0; i < top_tokens.dim[1]; ++i) {
      top_tokens.as<int32_t>()[r * top_tokens.dim[1] + i] = order[i];
      top_log_probs.f32()[r * top_tokens.dim[1] + i] = row[order[i]];
    }
  }
}

void FakeModel::Classify(const Tensor& states, const Tensor& logits) {
  for (int64_t r = 0; r < states.dim[0]; ++r) {
    const std::vector<float> row = LabelsOf(Unpack(states.f32() + r * kWidth));
    std::copy(row.begin(), row.end(), logits.f32() + r * config_.labels);
  }
}

uint64_t FakeModel::EncoderStateOf(const std::vector<int32_t>& source, int64_t row,
                                   int32_t adapter) {
  uint64_t hash = Adapted(3, adapter);
  for (int32_t token : source) hash = Mix(hash, token);
  return Mix(hash, row);
}

uint64_t FakeModel::StateOf(const std::vector<int32_t>& source,
                            const std::vector<int32_t>& history) {
  uint64_t from = kNoSource;
  for (size_t i = 0; i < source.size(); ++i) from = Mix(from, EncoderStateOf(source, i));
  uint64_t hash = kNoHistory;
  for (int32_t token : history) hash = Mix(hash, token);
  return Mix(hash, from);
}

std::vector<float> FakeModel::LogitsOf(uint64_t state) const {
  std::vector<float> row(config_.vocab);
  for (size_t v = 0; v < row.size(); ++v) {
    row[v] = static_cast<float>(static_cast<double>(Mix(state, v) >> 11) * 0x1p-53 * 8.0 - 4.0);
  }
  row[1] += options_.eos_bonus;
  return row;
}

std::vector<float> FakeModel::LabelsOf(uint64_t state) const {
  std::vector<float> row(config_.labels);
  for (size_t l = 0; l < row.size(); ++l) row[l] = static_cast<float>(Mix(state, 1000 + l) % 1000);
  return row;
}

}  // namespace quintet
