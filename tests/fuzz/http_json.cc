// Fuzz target: the JSON of the HTTP API. Byte 0 selects the route; all other bytes are the body of
// a request. Every body must give either request messages of RPCs, which must parse, or an error,
// which must become one line of JSON with a 4xx status. The test then makes up responses to the
// request messages. Translated back, they must be valid JSON or server-sent events.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/check.h"
#include "models/checkpoint/json.h"
#include "server/api_route.h"
#include "server/handlers.h"
#include "server/message_bytes.h"
#include "server/model_host.h"
#include "server/model_info.h"

namespace quintet {
namespace {

// Returns the shipped model, ready to serve. Its templates allow chats and reranking.
const ModelBinding& Binding() {
  static ThreadPool* const pool = new ThreadPool(1);
  static auto* const registry = new prometheus::Registry();
  static const ModelBinding* const binding = [] {
    HostOptions options;
    options.name = "g2p";
    options.directory = absl::StrCat(QUINTET_SOURCE_DIR, "/deploy/models/g2p");
    options.limits.cache_bytes = 1 << 20;
    options.templates = {"{role}: {content}\n", "", "{query} {document}", "A", "B", ""};
    const auto model = std::make_shared<ServedModel>(
        options,
        std::make_shared<ModelMetrics>(ModelMetrics::Options{.model_name = "g2p"}, registry));
    const auto host = std::make_shared<ModelHost>(options, pool, model->metrics());
    QT_CHECK(model->BeginLoad().ok());
    QT_CHECK(host->Prepare().ok());
    QT_CHECK(host->Load(/*encoder_cache_bytes=*/0).ok());
    model->Loaded(host, /*on_gpu=*/false);
    return new ModelBinding{model, host};
  }();
  return *binding;
}

const CallContext& Context() {
  static const CallContext* const context = [] {
    auto* const directory = new ModelDirectory();
    directory->Set({Binding().model});
    auto* const made = new CallContext();
    made->models = directory;
    return made;
  }();
  return *context;
}

void CheckRefusal(const absl::Status& status, ErrorStyle style) {
  QT_CHECK(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
           absl::IsNotFound(status));
  const RpcOutcome outcome = ToRpcOutcome(status, "fuzz", absl::Milliseconds(200));
  const HttpResponse response = ErrorResponse(style, outcome, std::string(status.message()));
  QT_CHECK_GE(response.status, 400);
  QT_CHECK_LT(response.status, 500);
  for (const char c : *response.body) QT_CHECK(c != '\n' && c != '\r');
}

// Checks that a Generate message gives engine requests or an error that blames the client.
void CheckGenerate(const grpc::ByteBuffer& message) {
  const auto proto = Parsed<v1::GenerateRequest>(message);
  if (!CheckCallOptions(proto.call()).ok() || !Context().models->Find(proto.call().model()).ok())
    return;
  const ModelHost& host = *Binding().host;
  InputLimits limits;
  limits.vocab = host.config().vocab;
  const absl::Status status = GenerateRequests(proto, host, limits, /*stream=*/true).status();
  if (!status.ok()) CheckRefusal(status, ErrorStyle::kOpenAi);
}

// Text that needs every kind of escape.
constexpr char kText[] = "a\"\\\n\x01 \xc3\xa9\xf0\x9f\x98\x80";

void FillLogProb(uint32_t id, v1::TokenLogProb* to) {
  to->set_token_id(id);
  to->set_log_prob(-0.5f);
  to->add_top()->set_token_id(id + 1);
}

v1::GenerateResponse Generated(const v1::GenerateRequest& request) {
  v1::GenerateResponse response;
  const v1::DecodingOptions& decoding = request.decoding();
  for (uint32_t i = 0; i < std::clamp(decoding.num_return_sequences(), 1u, 16u); ++i) {
    v1::Sequence* const sequence = response.add_sequences();
    sequence->set_index(i);
    sequence->set_text(i == 1 ? "" : kText);
    sequence->set_finish_reason(static_cast<v1::FinishReason>(1 + i % 3));
    sequence->set_matched_stop(i == 2 ? kText : "");
    sequence->set_score(-1.5f);
    for (uint32_t id = 5; id < 9; ++id) {
      if (decoding.return_token_ids()) sequence->add_token_ids(id);
      if (decoding.logprobs()) FillLogProb(id, sequence->add_logprobs());
    }
  }
  return response;
}

v1::EncodeResponse Encoded(const v1::EncodeRequest& request) {
  v1::EncodeResponse response;
  for (int i = 0; i < request.inputs_size(); ++i) {
    v1::Embedding* const embedding = response.add_embeddings();
    embedding->set_rows(request.options().pooling() == v1::POOLING_NONE ? 2 : 1);
    embedding->set_columns(3);
    // Includes infinities and NaN.
    embedding->set_values(std::string(embedding->rows() * 12, static_cast<char>(i - 1)));
  }
  return response;
}

v1::ScoreResponse Scored(const v1::ScoreRequest& request) {
  v1::ScoreResponse response;
  for (int i = 0; i < request.targets_size(); ++i) {
    response.add_scores()->set_log_prob(i % 2 == 0 ? -1.0 : -1e30);
  }
  return response;
}

v1::ClassifyResponse Classified(const v1::ClassifyRequest& request) {
  v1::ClassifyResponse response;
  for (int i = 0; i < request.inputs_size(); ++i) {
    v1::Classification* const result = response.add_results();
    for (int label = 0; label < i % 3; ++label) result->add_labels()->set_label(kText);
  }
  return response;
}

absl::Status NoLimit(int64_t) { return absl::OkStatus(); }

// Returns a made-up response of `rpc` to its request message; unset if `rpc` would return an error.
std::optional<grpc::ByteBuffer> ResponseTo(const Translation::RpcOfRequest& rpc) {
  const ModelHost& host = *Binding().host;
  InputLimits limits;
  limits.vocab = host.config().vocab;
  if (rpc.method == "Generate") {
    return ToBytes(Generated(Parsed<v1::GenerateRequest>(rpc.message)));
  }
  if (rpc.method == "Encode") return ToBytes(Encoded(Parsed<v1::EncodeRequest>(rpc.message)));
  if (rpc.method == "Score") return ToBytes(Scored(Parsed<v1::ScoreRequest>(rpc.message)));
  if (rpc.method == "Classify") {
    return ToBytes(Classified(Parsed<v1::ClassifyRequest>(rpc.message)));
  }
  if (rpc.method == "Tokenize") {
    v1::TokenizeResponse response;
    const auto request = Parsed<v1::TokenizeRequest>(rpc.message);
    if (!WriteTokens(request, host, limits, NoLimit, &response).ok()) return std::nullopt;
    return ToBytes(response);
  }
  if (rpc.method == "Detokenize") {
    v1::DetokenizeResponse response;
    const auto request = Parsed<v1::DetokenizeRequest>(rpc.message);
    if (!WriteText(request, host, NoLimit, &response).ok()) return std::nullopt;
    return ToBytes(response);
  }
  if (rpc.method == "ListModels") {
    v1::ListModelsResponse response;
    WriteServedModel(*Binding().model, response.add_models());
    return ToBytes(response);
  }
  QT_CHECK(rpc.method == "GetModelInfo");
  v1::GetModelInfoResponse response;
  WriteModelInfo(host, Context(), &response);
  return ToBytes(response);
}

void CheckEvents(absl::string_view events) {
  for (absl::string_view event : absl::StrSplit(events, "\n\n", absl::SkipEmpty())) {
    QT_CHECK(absl::ConsumePrefix(&event, "data:"));
    absl::ConsumePrefix(&event, " ");
    QT_CHECK(event == "[DONE]" || nlohmann::json::accept(event.begin(), event.end()));
  }
}

void CheckStream(const ErrorStyle style, Translation* translation) {
  for (size_t i = 0; i < translation->rpcs().size(); ++i) {
    const auto request = Parsed<v1::GenerateRequest>(translation->rpcs()[i].message);
    const v1::GenerateResponse response = Generated(request);
    for (const v1::Sequence& sequence : response.sequences()) {
      v1::GenerateChunk chunk;
      chunk.set_index(sequence.index());
      chunk.set_text(sequence.text().substr(0, 4));
      if (!sequence.token_ids().empty()) chunk.add_token_ids(sequence.token_ids(0));
      CheckEvents(translation->OnChunk(i, chunk));
    }
    CheckEvents(translation->OnComplete(i, response));
  }
  CheckEvents(translation->OnEnd());
  const RpcOutcome failed = ToRpcOutcome(absl::InternalError(kText), "fuzz", absl::Seconds(1));
  CheckEvents(translation->OnError(ErrorJson(style, failed, kText)));
}

// Checks the answer to a request whose RPCs succeed.
void CheckAnswer(const ErrorStyle style, Translation* translation) {
  if (translation->stream()) return CheckStream(style, translation);
  std::vector<grpc::ByteBuffer> responses;
  for (const Translation::RpcOfRequest& rpc : translation->rpcs()) {
    std::optional<grpc::ByteBuffer> response = ResponseTo(rpc);
    if (!response.has_value()) return;
    responses.push_back(*std::move(response));
  }
  const absl::StatusOr<std::string> body = translation->Body(responses);
  if (!body.ok()) return CheckRefusal(body.status(), style);
  QT_CHECK(nlohmann::json::accept(*body));
}

void Run(const ApiRoute& route, std::string_view text) {
  const auto body = ParseJson(text, "body", 16);
  if (!body.ok()) return CheckRefusal(body.status(), route.style);
  if (const absl::Status status = CheckKnownFields(route, *body); !status.ok()) {
    for (const char c : status.message()) {
      QT_CHECK(absl::ascii_isprint(static_cast<unsigned char>(c)));
    }
    return CheckRefusal(status, route.style);
  }
  HttpRequest request;
  request.method = route.method;
  request.target = route.path;
  const auto translation = route.translate({request, *body, "fuzz", Context(), Binding()});
  if (!translation.ok()) return CheckRefusal(translation.status(), route.style);
  QT_CHECK_GE((*translation)->rpcs().size(), 1u);
  QT_CHECK_LE((*translation)->rpcs().size(), 64u);
  QT_CHECK_LE((*translation)->MessageBytes(), 3 * Context().max_message_bytes);
  for (size_t i = 0; i < (*translation)->rpcs().size(); ++i) {
    WithJsonNames("input.token_ids.ids[7]: bad", (*translation)->names(i));
    const Translation::RpcOfRequest& rpc = (*translation)->rpcs()[i];
    if (rpc.method == "Generate" || rpc.method == "GenerateStream") CheckGenerate(rpc.message);
  }
  CheckAnswer(route.style, translation->get());
}

}  // namespace
}  // namespace quintet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  if (size < 1) return 0;
  const std::vector<ApiRoute>& routes = ApiRoutes();
  Run(routes[data[0] % routes.size()],
      std::string_view(reinterpret_cast<const char*>(data + 1), size - 1));
  return 0;
}
