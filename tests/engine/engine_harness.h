// Helpers for the engine's tests: recording sinks, requests for the fake model, reference results.
#pragma once

#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "models/tokenizers/tokenizer.h"
#include "tests/engine/fake_model.h"

namespace quintet {

struct RecordingSink : ResponseSink {
  void OnTokens(int index, std::span<const int32_t> ids, const std::string& text) override;
  void OnDone(absl::StatusOr<Result> result) override;

  int done_calls = 0;
  int tokens_after_done = 0;
  absl::Status status;
  Result result;
  std::vector<std::vector<int32_t>> streamed_ids;  // indexed by sequence
  std::vector<std::string> streamed_text;
};

// Base class of tokenizers that only decode: `pieces[t]` is the spelling of token t.
class PieceTokenizer : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view, bool) const override {
    return std::vector<int32_t>();
  }
  absl::StatusOr<std::vector<TokenSpan>> EncodeWithSpans(std::string_view, bool) const override {
    return std::vector<TokenSpan>();
  }
  std::string Piece(int32_t id) const override {
    return id >= 0 && id < vocab_size() ? pieces_[id] : "";
  }
  int32_t PieceToId(std::string_view) const override { return -1; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t eos_id() const override { return 1; }
  int32_t pad_id() const override { return 0; }
  int32_t unk_id() const override { return 2; }
  int32_t bos_id() const override { return -1; }

 private:
  std::vector<std::string> pieces_;
};

// A tokenizer whose token t decodes to the bytes of `pieces[t]`; ids without a piece are special
// and decode to nothing.
std::unique_ptr<Tokenizer> MakeBytesTokenizer(std::vector<std::string> pieces);

// `count` tokens, uniform in [0, vocab).
std::vector<int32_t> RandomTokens(std::mt19937* random, int64_t count, int64_t vocab);

// A generate request with eos 1. Causal models get the input as prompt.
Request GenerateRequest(const Model& model, std::vector<int32_t> input,
                        DecodingOptions options = {});

// Calls Engine::Step until no request is left, and returns the number of steps. Fails the test if
// there are more than `most` steps.
int RunAll(Engine* engine, int most = 10000);

// Runs one request alone in a new engine with a new fake model, and returns its result.
Result RunAlone(const FakeOptions& options, const Request& request, const Tokenizer* tokenizer);

// Returns whether two results are bit-identical, except for their timing.
bool SameResult(const Result& a, const Result& b);

}  // namespace quintet
