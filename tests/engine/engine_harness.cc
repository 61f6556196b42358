#include "tests/engine/engine_harness.h"

#include <span>

#include "tests/catch.h"

namespace quintet {
namespace {

class BytesTokenizer : public PieceTokenizer {
 public:
  using PieceTokenizer::PieceTokenizer;

  std::string Decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (int32_t id : ids) text += Piece(id);
    return text;
  }
  bool IsSpecial(int32_t id) const override { return Piece(id).empty(); }
};

}  // namespace

void RecordingSink::OnTokens(int index, std::span<const int32_t> ids, const std::string& text) {
  tokens_after_done += done_calls;
  if (static_cast<size_t>(index) >= streamed_ids.size()) {
    streamed_ids.resize(index + 1);
    streamed_text.resize(index + 1);
  }
  streamed_ids[index].insert(streamed_ids[index].end(), ids.begin(), ids.end());
  streamed_text[index] += text;
}

void RecordingSink::OnDone(absl::StatusOr<Result> outcome) {
  ++done_calls;
  status = outcome.status();
  if (outcome.ok()) result = std::move(*outcome);
}

std::unique_ptr<Tokenizer> MakeBytesTokenizer(std::vector<std::string> pieces) {
  return std::make_unique<BytesTokenizer>(std::move(pieces));
}

std::vector<int32_t> RandomTokens(std::mt19937* random, int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = static_cast<int32_t>((*random)() % vocab);
  return tokens;
}

Request GenerateRequest(const Model& model, std::vector<int32_t> input, DecodingOptions options) {
  Request request;
  request.kind = RequestKind::kGenerate;
  request.decoding = std::move(options);
  if (request.decoding.eos_token_ids.empty()) request.decoding.eos_token_ids = {1};
  if (!model.config().has_encoder()) {
    request.decoding.prompt = input;
  } else if (request.decoding.prompt.empty()) {
    request.decoding.prompt = {0};
  }
  request.input = std::move(input);
  request.sink = std::make_shared<RecordingSink>();
  return request;
}

int RunAll(Engine* engine, int most) {
  int steps = 1;
  while (engine->Step()) REQUIRE(++steps <= most);
  return steps;
}

Result RunAlone(const FakeOptions& options, const Request& request, const Tokenizer* tokenizer) {
  ThreadPool pool(1);
  FakeModel model(options, &pool);
  auto engine = Engine::Create(&model, tokenizer, EngineLimits());
  REQUIRE(engine.ok());
  Request copy = request;
  auto sink = std::make_shared<RecordingSink>();
  copy.sink = sink;
  if (request.adapter != nullptr) {  // one of another FakeModel
    copy.adapter = model.adapters()[std::stoul(request.adapter->source.name)];
  }
  const auto id = (*engine)->Submit(copy);
  INFO(id.status().message());
  REQUIRE(id.ok());
  RunAll(engine->get());
  CHECK(model.errors.empty());
  REQUIRE(sink->done_calls == 1);
  REQUIRE(sink->status.ok());
  return sink->result;
}

namespace {

bool SameLogProbs(const std::vector<TokenLogProb>& a, const std::vector<TokenLogProb>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].token != b[i].token || a[i].log_prob != b[i].log_prob ||
        a[i].alternatives != b[i].alternatives) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool SameResult(const Result& a, const Result& b) {
  if (a.sequences.size() != b.sequences.size() || a.targets.size() != b.targets.size())
    return false;
  for (size_t i = 0; i < a.sequences.size(); ++i) {
    const GeneratedSequence &x = a.sequences[i], &y = b.sequences[i];
    if (x.token_ids != y.token_ids || x.text != y.text || x.score != y.score ||
        x.finish_reason != y.finish_reason || x.matched_stop != y.matched_stop ||
        !SameLogProbs(x.logprobs, y.logprobs)) {
      return false;
    }
  }
  for (size_t i = 0; i < a.targets.size(); ++i) {
    if (a.targets[i].total != b.targets[i].total ||
        !SameLogProbs(a.targets[i].tokens, b.targets[i].tokens)) {
      return false;
    }
  }
  return a.values == b.values && a.rows == b.rows && a.columns == b.columns && a.seed == b.seed &&
         a.output_tokens == b.output_tokens;
}

}  // namespace quintet
