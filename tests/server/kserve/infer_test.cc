#include "server/kserve/infer.h"

#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/server/kserve/infer_checks.h"
#include "tests/server/kserve/parse_request.h"
#include "tests/server/running_server.h"

namespace quintet {
namespace {

// Returns models with and without a tokenizer, and with different task heads.
const std::vector<const ModelHost*>& Hosts() {
  static const auto* const hosts = [] {
    auto* loaded = new std::vector<const ModelHost*>;
    auto* const pool = new ThreadPool(1);
    auto* const registry = new prometheus::Registry();
    for (const char* directory : {"deploy/models/g2p", "tests/golden/cases/gpt2",
                                  "tests/golden/cases/t5-seqcls", "tests/golden/cases/t5-tokcls"}) {
      HostOptions options = TestOptions().models[0];
      options.name = absl::StrCat("model", loaded->size());
      options.directory = absl::StrCat(QUINTET_SOURCE_DIR, "/", directory);
      auto* const host =
          new ModelHost(options, pool,
                        std::make_shared<ModelMetrics>(
                            ModelMetrics::Options{.model_name = options.name}, registry));
      REQUIRE(host->Prepare().ok());
      REQUIRE(host->Load(/*encoder_cache_bytes=*/0).ok());
      loaded->push_back(host);
    }
    return loaded;
  }();
  return *hosts;
}

TEST_CASE("a batch of texts is one engine request for each", "[kserve]") {
  InferTask task(/*streams=*/false);
  task.Read(ParseRequest(R"(id: "r-1" parameters { key: "num_beams" value { int64_param: 3 } }
                      parameters { key: "priority" value { string_param: "low" } }
                      inputs { name: "text_input" datatype: "BYTES" shape: [2, 1]
                               contents { bytes_contents: "abc" bytes_contents: "de" } })"),
            absl::OkStatus());
  CHECK(task.call().request_id() == "r-1");
  CHECK(task.call().priority() == v1::PRIORITY_LOW);
  CHECK(task.size().requests == 2);
  CHECK(task.size().inputs.text_bytes == 5);
  InputLimits limits;
  limits.vocab = Hosts()[0]->config().vocab;
  task.ResponseBound(*Hosts()[0], limits);
  const auto requests = task.Prepare(*Hosts()[0], limits);
  REQUIRE(requests.ok());
  REQUIRE(requests->size() == 2);
  CHECK((*requests)[0].input.size() == (*requests)[1].input.size() + 1);  // a piece per letter
  CHECK((*requests)[1].decoding.num_beams == 3);
  // The smaller result is padded to the size of the larger one.
  CHECK(task.ResponseMemory(*requests, *Hosts()[0]) ==
        2 * PaddedResponseBytes(*requests, *Hosts()[0]));
}

// The id of a request becomes CallOptions.request_id only if it is a valid request_id. The response
// returns the id in either case.
TEST_CASE("an id that is no request id is still returned", "[kserve]") {
  InferTask task(false);
  task.Read(ParseRequest(R"(id: "no/request id")"), absl::OkStatus());
  CHECK(task.call().request_id().empty());
  kserve::ModelInferResponse response;
  task.WriteHead("m", &response);
  CHECK(response.id() == "no/request id");
}

TEST_CASE("memory that cannot be reserved is the error of the request", "[kserve]") {
  const kserve::ModelInferRequest request =
      ParseRequest(R"(inputs { name: "input_ids" datatype: "INT64" shape: [1, 2]
                         contents { int64_contents: [5, 6] } })");
  CHECK(InferTask::MemoryToRead(request) > 0);
  InferTask task(false);
  task.Read(request, absl::ResourceExhaustedError("full"));
  CHECK(task.ResponseBound(*Hosts()[0], {}) == 0);
  CHECK(absl::IsResourceExhausted(task.Prepare(*Hosts()[0], {}).status()));
}

// Builds random requests: tensors and parameters with known names, often valid, with some parts
// replaced by extreme values.
class RandomRequests {
 public:
  explicit RandomRequests(uint64_t seed) : random_(seed) {}

  kserve::ModelInferRequest Next() { return Below(2) == 0 ? Plain() : Wild(); }

 private:
  // Builds a simple request, which is often valid.
  kserve::ModelInferRequest Plain() {
    kserve::ModelInferRequest request;
    auto* input = request.add_inputs();
    input->add_shape(1 + Below(3));
    input->add_shape(1);
    const bool text = Below(2) == 0;
    input->set_name(text ? "text_input" : "input_ids");
    input->set_datatype(text ? "BYTES" : "INT64");
    for (int64_t i = 0; i < input->shape(0); ++i) {
      if (text) {
        input->mutable_contents()->add_bytes_contents(Pick(kTexts));
      } else {
        input->mutable_contents()->add_int64_contents(Id());
      }
    }
    if (Below(2) == 0) request.add_outputs()->set_name(Pick(kOutputs));
    if (Below(4) == 0) AddParameter(&request);
    return request;
  }

  // Builds a request of random tensors, outputs and parameters; sizes may be extreme.
  kserve::ModelInferRequest Wild() {
    kserve::ModelInferRequest request;
    const bool raw = Below(2) == 0;
    const int64_t batch = Below(4) == 0 ? Extreme() : 1 + Below(4);
    AddTensor(Below(2) == 0 ? "text_input" : "input_ids", batch, raw, &request);
    for (int more = Below(3); more > 0; --more) AddTensor(Pick(kInputs), batch, raw, &request);
    for (int more = Below(4); more > 0; --more) request.add_outputs()->set_name(Pick(kOutputs));
    for (int more = Below(4); more > 0; --more) AddParameter(&request);
    if (Below(20) == 0) request.add_raw_input_contents(std::string(1, 'x'));
    if (Below(20) == 0) request.set_model_version(Pick({"1", "2", ""}));
    return request;
  }

  static constexpr const char* kInputs[] = {
      "text_input",  "input_ids",           "attention_mask",          "input_lengths",
      "target_text", "target_ids",          "target_lengths",          "context",
      "stream",      "sampling_parameters", "exclude_input_in_output", "other"};
  static constexpr const char* kOutputs[] = {"text_output",
                                             "output_ids",
                                             "sequence_length",
                                             "finish_reason",
                                             "matched_stop",
                                             "sequence_scores",
                                             "output_log_probs",
                                             "cumulative_logprob",
                                             "seed",
                                             "embedding",
                                             "last_hidden_state",
                                             "log_prob",
                                             "target_length",
                                             "token_log_probs",
                                             "label",
                                             "probabilities",
                                             "logits",
                                             "offsets",
                                             "answer",
                                             "num_input_tokens",
                                             "x"};
  static constexpr const char* kParameters[] = {"num_beams",
                                                "num_return_sequences",
                                                "do_sample",
                                                "temperature",
                                                "stop",
                                                "top_k",
                                                "early_stopping",
                                                "bad_words_ids",
                                                "pooling",
                                                "vector_type",
                                                "normalize",
                                                "prompt",
                                                "priority",
                                                "stream",
                                                "truncate",
                                                "add_special_tokens",
                                                "echo",
                                                "max_new_tokens",
                                                "decoder_prefix",
                                                "seed",
                                                "unknown",
                                                "sliding_window",
                                                "max_answer_tokens",
                                                ""};
  static constexpr const char* kTexts[] = {
      "a",     "phoneme", "",      "\xff", "{\"n\": 2}", "{",     "[]",
      "[[1]]", "true",    "never", "max",  "1",          "naïve", "{\"temperature\": 1e400}"};

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  template <typename T, size_t n>
  const char* Pick(T (&from)[n]) {
    return from[Below(n)];
  }
  const char* Pick(std::initializer_list<const char*> from) {
    return *(from.begin() + Below(static_cast<int>(from.size())));
  }
  int64_t Extreme() {
    constexpr int64_t kValues[] = {0,
                                   -1,
                                   64,
                                   65,
                                   1 << 20,
                                   int64_t{1} << 31,
                                   int64_t{1} << 40,
                                   std::numeric_limits<int64_t>::max(),
                                   std::numeric_limits<int64_t>::min()};
    return kValues[Below(std::size(kValues))];
  }
  int64_t Id() { return Below(10) == 0 ? Extreme() : Below(3) == 0 ? Below(2) : Below(60); }

  void AddTensor(const std::string& name, int64_t batch, bool raw,
                 kserve::ModelInferRequest* request) {
    const bool text = name.find("text") != std::string::npos || name == "sampling_parameters";
    const bool flag = name == "stream" || name == "exclude_input_in_output";
    auto* input = request->add_inputs();
    input->set_name(name);
    const bool wide = Below(2) == 0;
    input->set_datatype(Below(20) == 0 ? Pick({"FP32", "", "UINT8", "BYTES"})
                        : text         ? "BYTES"
                        : flag         ? "BOOL"
                        : wide         ? "INT64"
                                       : "INT32");
    const bool per_request = flag || name == "sampling_parameters";
    int64_t elements = per_request ? 1 : std::clamp<int64_t>(batch, 0, 70);
    input->add_shape(per_request ? 1 : batch);
    for (int dims = Below(3); dims > 0; --dims) {
      const int64_t size = Below(15) == 0 ? Extreme() : 1 + Below(text ? 2 : 4);
      input->add_shape(size);
      elements = std::clamp<int64_t>(elements * std::clamp<int64_t>(size, 0, 70), 0, 5000);
    }
    if (Below(15) == 0) elements += Below(3) - 1;
    std::string bytes;
    for (int64_t i = 0; i < elements; ++i) AddElement(text, flag, wide, raw, &bytes, input);
    if (raw) request->add_raw_input_contents(bytes);
  }

  void AddElement(bool text, bool flag, bool wide, bool raw, std::string* bytes,
                  kserve::ModelInferRequest::InferInputTensor* input) {
    auto* contents = raw ? nullptr : input->mutable_contents();
    if (text) {
      const std::string value = Pick(kTexts);
      if (raw) {
        bytes->append(RawStrings(std::span(&value, 1)));
      } else {
        contents->add_bytes_contents(value);
      }
    } else if (flag) {
      if (raw) {
        bytes->push_back(static_cast<char>(Below(2)));
      } else {
        contents->add_bool_contents(Below(2) == 0);
      }
    } else if (wide) {
      AddId<int64_t>(raw, bytes, raw ? nullptr : contents->mutable_int64_contents());
    } else {
      AddId<int32_t>(raw, bytes, raw ? nullptr : contents->mutable_int_contents());
    }
  }

  template <typename T>
  void AddId(bool raw, std::string* bytes, google::protobuf::RepeatedField<T>* values) {
    const T id = static_cast<T>(Id());
    if (raw) {
      bytes->append(reinterpret_cast<const char*>(&id), sizeof(id));
    } else {
      values->Add(id);
    }
  }

  void AddParameter(kserve::ModelInferRequest* request) {
    auto* const parameter = request->add_parameters();
    parameter->set_key(Pick(kParameters));
    kserve::InferParameter& value = *parameter->mutable_value();
    switch (Below(6)) {
      case 0:
        return value.set_bool_param(Below(2) == 0);
      case 1:
        return value.set_int64_param(Below(3) == 0 ? Extreme() : Below(5));
      case 2:
        return value.set_uint64_param(static_cast<uint64_t>(Extreme()));
      case 3:
        return value.set_double_param(Below(3) == 0 ? std::numeric_limits<double>::quiet_NaN()
                                                    : Below(30) * 0.1);
      case 4:
        return value.set_string_param(Pick({"a", "[]", "[1]", "true", "never", "mean", "1e999"}));
      default:
        return;
    }
  }

  std::mt19937_64 random_;
};

TEST_CASE("random requests give engine requests or an error", "[kserve]") {
  RandomRequests requests(1);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 40'000; ++i) {
    const kserve::ModelInferRequest request = requests.Next();
    const CheckedInfer checked =
        CheckInfer(request, /*streams=*/i % 2 == 0, *Hosts()[static_cast<size_t>(i) % 4]);
    ++(checked.status.ok() ? accepted : refused);
  }
  INFO(accepted << " accepted, " << refused << " refused");
  CHECK(accepted > 1000);
  CHECK(refused > 1000);
}

}  // namespace
}  // namespace quintet
