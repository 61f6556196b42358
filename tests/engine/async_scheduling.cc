#include "tests/engine/async_scheduling.h"

#include <cmath>
#include <random>
#include <utility>

#include "tests/catch.h"

namespace quintet {
namespace {

struct LastSink : ResponseSink {
  void OnDone(absl::StatusOr<Result> outcome) override {
    status = outcome.status();
    if (outcome.ok()) result = *std::move(outcome);
  }
  absl::Status status = absl::UnknownError("not ended");
  Result result;
};

class RandomRequests {
 public:
  RandomRequests(const ModelConfig& config, uint32_t seed) : config_(config), random_(seed) {}

  Request Next() {
    Request request;
    request.input = Tokens(2 + Below(14));
    DecodingOptions& o = request.decoding;
    o.prompt =
        config_.has_encoder() ? std::vector<int32_t>{config_.decoder_start_id} : request.input;
    o.max_new_tokens = static_cast<int32_t>(4 + Below(20));
    if (Below(2) == 0) o.eos_token_ids = config_.eos_ids;
    if (Below(4) == 0) o.num_beams = static_cast<int32_t>(2 + Below(3));
    if (Below(2) == 0) AddSampling(&o);
    if (o.num_beams == 1 && o.do_sample)
      o.num_return_sequences = static_cast<int32_t>(1 + Below(3));
    AddRules(&o);
    if (Below(5) == 0) o.logprobs = true;
    if (o.logprobs && Below(2) == 0) o.top_logprobs = 3;
    return request;
  }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  std::vector<int32_t> Tokens(int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& t : tokens) t = static_cast<int32_t>(3 + Below(config_.vocab - 3));
    return tokens;
  }
  void AddSampling(DecodingOptions* o) {
    o->do_sample = true;
    o->seed = random_();
    o->warp.top_k = Below(3) == 0 ? 0 : static_cast<int32_t>(1 + Below(60));
    if (Below(2) == 0) o->warp.top_p = 0.9f;
    if (Below(2) == 0) o->warp.temperature = 0.7f;
    if (Below(4) == 0) o->warp.typical_p = 0.8f;
    if (Below(4) == 0) o->warp.min_p = 0.02f;
  }
  void AddRules(DecodingOptions* o) {
    if (Below(3) == 0) o->repetition_penalty = 1.2f;
    if (Below(4) == 0) o->no_repeat_ngram_size = static_cast<int32_t>(1 + Below(3));
    if (Below(5) == 0) o->bad_words_ids = {Tokens(1), Tokens(2), Tokens(2)};
    if (Below(5) == 0) o->min_new_tokens = static_cast<int32_t>(Below(o->max_new_tokens + 1));
    if (Below(6) == 0) o->suppress_tokens = Tokens(20);
    if (Below(6) == 0) o->begin_suppress_tokens = Tokens(20);
    if (Below(8) == 0) o->forced_bos_token_id = Tokens(1)[0];
    if (Below(8) == 0) o->forced_eos_token_ids = {1};
  }

  const ModelConfig& config_;
  std::mt19937 random_;
};

}  // namespace

std::unique_ptr<Model> LoadChoosing(const std::string& folder, Device* device, ThreadPool* pool,
                                    int64_t sequences) {
  LoadOptions options;
  options.device = device;
  options.weights = WeightType::kF32;
  options.limits.max_step_sequences = sequences;
  options.limits.cache_pages = 4096;
  auto model = Model::Load(QUINTET_SOURCE_DIR + folder, options, pool);
  INFO(folder << ": " << model.status());
  REQUIRE(model.ok());
  return *std::move(model);
}

std::vector<Request> RandomChoices(const ModelConfig& config, int count, uint32_t seed) {
  RandomRequests random(config, seed);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) requests.push_back(random.Next());
  return requests;
}

std::vector<Request> RandomBeams(const ModelConfig& config, int count, uint32_t seed) {
  std::vector<Request> requests = RandomChoices(config, count, seed);
  for (size_t i = 0; i < requests.size(); ++i) {
    DecodingOptions& o = requests[i].decoding;
    o.logprobs = false;
    o.top_logprobs = 0;
    o.max_new_tokens += 10;
    if (i % 5 == 4) continue;  // other kinds of requests in the same steps
    o.num_return_sequences = 1;
    o.num_beams = static_cast<int32_t>(2 + i % 5);
  }
  return requests;
}

std::vector<Result> Choose(Model* model, std::vector<Request> requests, bool async_scheduling,
                           int cancel_each) {
  auto engine = Engine::Create(model, nullptr, {.async_scheduling = async_scheduling});
  REQUIRE(engine.ok());
  std::vector<std::shared_ptr<LastSink>> sinks;
  std::vector<RequestId> ids;
  const auto cancelled = [&](size_t i) {
    return cancel_each > 0 && i % static_cast<size_t>(cancel_each) == 0;
  };
  bool more = true;
  for (size_t step = 0; more || sinks.size() < requests.size(); ++step) {
    REQUIRE(step < 10000);
    if (step % 2 == 0 && sinks.size() < requests.size()) {
      sinks.push_back(std::make_shared<LastSink>());
      Request& request = requests[sinks.size() - 1];
      request.sink = sinks.back();
      const auto id = (*engine)->Submit(request);
      REQUIRE(id.ok());
      ids.push_back(*id);
    }
    constexpr size_t kStepsBefore = 7;
    if (step >= kStepsBefore && (step - kStepsBefore) / 2 < ids.size() &&
        cancelled((step - kStepsBefore) / 2)) {
      (*engine)->Cancel(ids[(step - kStepsBefore) / 2]);
    }
    more = (*engine)->Step();
  }
  std::vector<Result> results;
  for (size_t i = 0; i < sinks.size(); ++i) {
    INFO(sinks[i]->status);
    REQUIRE((sinks[i]->status.ok() || cancelled(i)));
    results.push_back(cancelled(i) ? Result() : sinks[i]->result);
  }
  return results;
}

std::vector<Result> ChooseTogether(Model* model, std::vector<Request> requests,
                                   bool async_scheduling) {
  auto engine = Engine::Create(model, nullptr,
                               {.max_queue_requests = static_cast<int64_t>(requests.size()),
                                .max_running_sequences = model->limits().max_step_sequences,
                                .async_scheduling = async_scheduling});
  REQUIRE(engine.ok());
  std::vector<std::shared_ptr<LastSink>> sinks;
  for (Request& request : requests) {
    sinks.push_back(std::make_shared<LastSink>());
    request.sink = sinks.back();
    REQUIRE((*engine)->Submit(request).ok());
  }
  while ((*engine)->Step()) {
  }
  std::vector<Result> results;
  for (const auto& sink : sinks) {
    REQUIRE(sink->status.ok());
    results.push_back(sink->result);
  }
  return results;
}

bool ChoseAlike(const Result& a, const Result& b, float tolerance) {
  if (a.sequences.size() != b.sequences.size()) return false;
  for (size_t i = 0; i < a.sequences.size(); ++i) {
    const GeneratedSequence &x = a.sequences[i], &y = b.sequences[i];
    if (x.token_ids != y.token_ids || x.logprobs.size() != y.logprobs.size()) return false;
    if (x.score != y.score && !(std::abs(x.score - y.score) <= tolerance)) return false;
    for (size_t t = 0; t < x.logprobs.size(); ++t) {
      const TokenLogProb &p = x.logprobs[t], &q = y.logprobs[t];
      if (!(std::abs(p.log_prob - q.log_prob) <= tolerance)) return false;
      if (p.alternatives.size() != q.alternatives.size()) return false;
    }
  }
  return true;
}

}  // namespace quintet
