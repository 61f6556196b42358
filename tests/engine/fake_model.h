// A fake model: hidden states are hashes of everything that a decoder may attend to (source,
// history), and logits are a function of the hash. Every cache slot remembers what was written to
// it, so a wrong slot, a lost page or a beam that reads another's history shows up in `errors` or
// as different results.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/adapter_layout.h"
#include "models/adapter_slots.h"
#include "models/model.h"

namespace quintet {

struct FakeOptions {
  bool causal = false;  // like GPT-2; otherwise like T5
  Head head = Head::kLanguageModel;
  Family family = Family::kT5;
  int64_t vocab = 40;
  int64_t labels = 3;
  int64_t max_positions = 0;
  float eos_bonus = 0.0f;     // added to the logit of token 1
  int64_t adapters = 0;       // number of adapters; each changes all hashes of its sequences
  int64_t adapter_slots = 0;  // 0: one for each adapter
  // A simulated clock, in microseconds. It advances by encode_us per unit of encoder work (see
  // Model::EncodeSlice), project_us per row of states that is projected to keys and values,
  // decode_us per decoder call, and token_us per token of a decoder call.
  int64_t* clock_us = nullptr;
  int64_t encode_us = 0, project_us = 0, decode_us = 0, token_us = 0;
  Device* device = nullptr;  // device of the stream; the work itself runs on the CPU
  ModelLimits limits{.max_encode_tokens = 256,
                     .max_step_tokens = 48,
                     .max_step_sequences = 32,
                     .cache_pages = 200,
                     .page_size = 4};
};

class FakeModel : public Model {
 public:
  FakeModel(const FakeOptions& options, ThreadPool* pool);

  std::span<const AdapterHandle> adapters() const override { return adapters_; }
  AdapterSlots* adapter_slots() override { return adapters_.empty() ? nullptr : &adapter_slots_; }
  void BeginEncode(const EncodeBatch& batch) override;
  bool EncodeSlice(int64_t work) override;
  Tensor EncodedStates() const override;
  Tensor EncodedRows(std::span<const int32_t> rows) override;
  void ProjectCross(const Tensor& states, int64_t position, std::span<const int32_t> slots,
                    std::span<const int32_t> adapters) override;
  Tensor Decode(const DecodeBatch& batch) override;
  Tensor next_tokens() const override {
    return Tensor::Dense(chosen_.data(), DType::kI32, {static_cast<int64_t>(chosen_.size())});
  }
  Tensor parent_beams() const override {
    return Tensor::Dense(parents_.data(), DType::kI32, {static_cast<int64_t>(parents_.size())});
  }
  TokenHistory history() const override {
    const auto slots = static_cast<int64_t>(slot_tokens_.size());
    return {Tensor::Dense(slot_tokens_.data(), DType::kI32, {slots}), step_slots_.data(),
            step_stride_, step_lens_};
  }
  void Logits(const Tensor& states, const Tensor& logits) override;
  void TargetLogProbs(const Tensor& states, const Tensor& targets, const Tensor& log_probs,
                      const Tensor& top_log_probs, const Tensor& top_tokens) override;
  void Classify(const Tensor& states, const Tensor& logits) override;

  // Tests compute expected results with these functions, which the fake model itself uses. StateOf
  // returns the hash of the state after `history` given `source`; LogitsOf returns the logits of a
  // hash.
  static uint64_t StateOf(const std::vector<int32_t>& source, const std::vector<int32_t>& history);
  static uint64_t EncoderStateOf(const std::vector<int32_t>& source, int64_t row,
                                 int32_t adapter = -1);
  std::vector<float> LogitsOf(uint64_t state) const;
  std::vector<float> LabelsOf(uint64_t state) const;

  std::vector<std::string> errors;
  int64_t decodes = 0, slices = 0, most_tokens = 0, most_sequences = 0, encode_batches = 0;
  int64_t encoded_tokens = 0;
  int64_t async_scheduling_tokens = 0;  // input tokens taken from next_tokens()
  int64_t moves = 0;                    // beams reordered by parent_beams()

 private:
  struct Slot {
    bool source = false;
    int64_t position = -1;
    uint64_t before = 0, after = 0;  // hash of the history before and after this token
  };

  void Expect(bool holds, const char* what) {
    if (!holds && errors.size() < 20) errors.emplace_back(what);
  }
  void Spend(int64_t us) {
    if (options_.clock_us != nullptr) *options_.clock_us += us;
  }
  uint64_t ReadSource(const DecodeBatch& batch, size_t group);
  uint64_t ReadHistory(const DecodeBatch& batch, size_t sequence, int64_t length);
  void CheckAdapters(std::span<const int32_t> adapters, size_t count);
  // Returns the index of the adapter of element i of a batch; -1: none. `slots` holds the adapter
  // slot of each element.
  int32_t AdapterOf(std::span<const int32_t> slots, size_t i) const;
  uint64_t CausalStateOf(size_t begin, size_t end, size_t row);

  FakeOptions options_;
  std::shared_ptr<const AdapterLayout> layout_;
  std::vector<AdapterHandle> adapters_;
  std::vector<int32_t> in_slot_;  // index of the adapter in each slot
  AdapterSlots adapter_slots_;
  std::vector<Slot> slots_;
  std::vector<float> encoder_states_, decoder_states_, taken_states_;
  std::vector<int32_t> chosen_, parents_;
  std::vector<int32_t> slot_tokens_, step_slots_, step_lens_;  // the history of the latest Decode
  int64_t step_stride_ = 0;
  std::vector<int32_t> encode_tokens_, encode_offsets_, encode_adapters_;
  std::vector<int32_t> encode_positions_, lower_begin_, upper_end_;  // arrays of the encode batch
  bool both_ways_ = false;
  int64_t encode_left_ = -1;  // work units; -1: no batch
};

}  // namespace quintet
