// Routes of Text Generation Inference.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "server/api_route.h"
#include "server/api_tei.h"
#include "server/json_fields.h"

namespace quintet {
namespace {

using Json = JsonValue;
using Made = absl::StatusOr<std::unique_ptr<Translation>>;

const char* TgiFinishName(v1::FinishReason reason) {
  if (reason == v1::FINISH_REASON_EOS) return "eos_token";
  return reason == v1::FINISH_REASON_STOP ? "stop_sequence" : "length";
}

// Members of "parameters" that clients send and that change nothing here.
constexpr const char* kIgnored[] = {"watermark", "decoder_input_details"};

class GenerateTranslation final : public Translation {
 public:
  // `list`: whether a response that is not a stream is an array of one element, as in TGI's POST /.
  static Made Create(const ApiRequest& request, bool stream, bool list) {
    auto made = std::make_unique<GenerateTranslation>();
    JsonFields fields(request.body);
    v1::GenerateRequest proto;
    v1::CallOptions* const call = proto.mutable_call();
    call->set_request_id(request.request_id);
    fields.ReadCall(call);
    fields.Read("stream", &stream);
    std::vector<v1::Input> inputs;
    bool several = false;
    fields.ReadInputs("inputs", &inputs, &several);
    if (several) fields.Fail("inputs", "expected a string or an array of token ids");
    static const nlohmann::json empty = nlohmann::json::object();
    const nlohmann::json* const parameters = fields.Find("parameters");
    JsonFields options(parameters == nullptr ? empty : *parameters, "parameters.");
    made->ReadParameters(&options, &proto);
    if (parameters != nullptr && options.status().ok()) options.Fail(Unknown(*parameters, options));
    fields.Fail(options.status());
    QT_RETURN_IF_ERROR(fields.status());
    if (const auto host = request.Find(call->model()); host.ok()) made->host_ = *host;
    *proto.mutable_input() = std::move(inputs[0]);
    if (proto.input().has_text() && made->full_text_) made->prompt_ = proto.input().text();
    made->stream_ = stream;
    made->list_ = list && !stream;
    made->AddRpc(stream ? "GenerateStream" : "Generate", proto);
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    const auto response = Parsed<v1::GenerateResponse>(responses[0]);
    if (response.sequences().empty()) return absl::InternalError("no sequence");
    Json answer = {{"generated_text", prompt_ + response.sequences(0).text()}};
    if (details_) answer["details"] = Details(response);
    return JsonText(list_ ? Json::Array({std::move(answer)}) : std::move(answer));
  }

  std::string OnChunk(size_t, const v1::GenerateChunk& chunk) override {
    if (chunk.index() != 0) return "";  // TGI streams the best sequence only
    streamed_ += chunk.text().size();
    std::string events;
    // One event per token. The last event has the text of the whole chunk, the others have none.
    for (int i = 0; i < chunk.token_ids_size(); ++i) {
      const bool last = i + 1 == chunk.token_ids_size();
      events += TokenEvent(chunk.token_ids(i), last ? chunk.text() : "", nullptr, nullptr);
    }
    if (chunk.token_ids().empty()) events = TokenEvent(0, chunk.text(), nullptr, nullptr);
    return events;
  }

  std::string OnComplete(size_t, const v1::GenerateResponse& response) override {
    if (response.sequences().empty()) return "";
    const v1::Sequence& best = response.sequences(0);
    const uint32_t id = best.token_ids().empty() ? 0 : *best.token_ids().rbegin();
    const std::string rest = best.text().substr(std::min(streamed_, best.text().size()));
    return TokenEvent(id, rest, prompt_ + best.text(), Details(response));
  }

  std::string OnError(const std::string& error) override {
    return absl::StrCat("data:", error, "\n\n");
  }

 private:
  void ReadParameters(JsonFields* options, v1::GenerateRequest* proto) {
    v1::DecodingOptions* const decoding = proto->mutable_decoding();
    options->Read("details", &details_);
    options->Read("return_full_text", &full_text_);
    for (const char* name : kIgnored) {
      bool ignored = false;
      options->Read(name, &ignored);
    }
    options->Refuse("grammar", {}, "not supported");
    if (options->Find("adapter_id") != nullptr) {
      options->Read("adapter_id", proto->mutable_call()->mutable_adapter());
      names_[0].push_back({"call.adapter", "parameters.adapter_id"});
    }
    options->Refuse("frequency_penalty", {"0", "0.0"}, "not supported; see repetition_penalty");
    ReadTruncate(options, proto->mutable_call());
    std::optional<uint32_t> best_of, top_n;
    options->Read("best_of", &best_of);
    if (best_of.value_or(1) > 1) {
      decoding->set_num_beams(*best_of);
      decoding->set_num_return_sequences(*best_of);
      names_[0].push_back({"decoding.num_beams", "parameters.best_of"});
    }
    options->Read("top_n_tokens", &top_n);
    if (top_n.value_or(0) > 0) decoding->set_top_logprobs(*top_n);
    ReadSampling(options, decoding);
    options->ReadDecoding(decoding);
    if (details_ || top_n.value_or(0) > 0) decoding->set_logprobs(true);
    decoding->set_return_token_ids(true);
    for (const auto& field : DecodingFields()) {
      names_[0].push_back({"decoding." + field.name, "parameters." + field.name});
    }
    names_[0].push_back({"input", "inputs"});
  }

  // In TGI, truncate is a number of tokens. Here it is a bool: whether to cut at the input limit.
  static void ReadTruncate(JsonFields* options, v1::CallOptions* call) {
    const nlohmann::json* const value = options->Find("truncate");
    if (value == nullptr) return;
    if (value->is_boolean()) return call->set_truncate(value->get<bool>());
    options->Fail("truncate", "a number of tokens is not supported: expected true or false");
  }

  // Without do_sample, any of temperature, top_k, top_p and typical_p turns sampling on, as in TGI.
  static void ReadSampling(JsonFields* options, v1::DecodingOptions* decoding) {
    std::optional<double> temperature, typical;
    bool sample = false;
    options->Read("do_sample", &sample);
    const bool has_sample = options->Find("do_sample") != nullptr;
    options->Read("temperature", &temperature);
    if (temperature.has_value()) {
      const double most = std::numeric_limits<float>::max();
      decoding->set_temperature(static_cast<float>(std::clamp(*temperature, -most, most)));
    }
    bool limited = temperature.has_value();
    for (const char* name : {"top_k", "top_p"}) limited |= options->Peek(name);
    options->Read("typical_p", &typical);
    if (typical.has_value()) decoding->set_typical_p(static_cast<float>(*typical));
    limited |= typical.has_value();
    if (!has_sample && limited) sample = true;
    if (has_sample || sample) decoding->set_do_sample(sample);
    if (!sample && has_sample && options->Peek("seed")) options->Find("seed");
  }

  static absl::Status Unknown(const nlohmann::json& parameters, const JsonFields& options) {
    for (const auto& [name, value] : parameters.items()) {
      if (options.WasRead(name)) continue;
      std::string shown = name.substr(0, 64);
      std::replace_if(
          shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
      return absl::InvalidArgumentError(absl::StrCat("parameters.", shown, ": unknown parameter"));
    }
    return absl::OkStatus();
  }

  Json Token(uint32_t id, const std::string& text, Json log_prob) const {
    const Tokenizer* const tokenizer = host_ == nullptr ? nullptr : host_->tokenizer();
    const bool special = tokenizer != nullptr && tokenizer->IsSpecial(static_cast<int32_t>(id));
    return {{"id", id}, {"text", text}, {"logprob", std::move(log_prob)}, {"special", special}};
  }

  std::string TokenEvent(uint32_t id, const std::string& text, Json generated, Json details) {
    Json event = {{"index", ++index_},
                  {"token", Token(id, text, nullptr)},
                  {"top_tokens", Json::Array()},
                  {"generated_text", std::move(generated)},
                  {"details", std::move(details)}};
    return absl::StrCat("data:", JsonText(event), "\n\n");
  }

  std::string PieceOf(uint32_t id) const {
    const Tokenizer* const tokenizer = host_ == nullptr ? nullptr : host_->tokenizer();
    return tokenizer == nullptr ? "" : tokenizer->Piece(static_cast<int32_t>(id));
  }

  Json TokensOf(const v1::Sequence& sequence, Json* tops) const {
    Json tokens = Json::Array();
    for (const v1::TokenLogProb& token : sequence.logprobs()) {
      tokens.push_back(Token(token.token_id(), PieceOf(token.token_id()), token.log_prob()));
      Json top = Json::Array();
      for (const v1::TokenAlternative& other : token.top()) {
        top.push_back(Token(other.token_id(), PieceOf(other.token_id()), other.log_prob()));
      }
      tops->push_back(std::move(top));
    }
    return tokens;
  }

  Json SequenceDetails(const v1::Sequence& sequence, uint64_t seed) const {
    Json tops = Json::Array();
    Json details = {{"finish_reason", TgiFinishName(sequence.finish_reason())},
                    {"generated_tokens", sequence.token_ids_size()},
                    {"seed", seed == 0 ? Json() : Json(seed)},
                    {"prefill", Json::Array()}};
    details["tokens"] = TokensOf(sequence, &tops);
    details["top_tokens"] = std::move(tops);
    return details;
  }

  Json Details(const v1::GenerateResponse& response) const {
    Json details = SequenceDetails(response.sequences(0), response.seed());
    details["input_length"] = response.info().usage().input_tokens();
    if (response.sequences_size() == 1) return details;
    details["best_of_sequences"] = Json::Array();
    for (int i = 1; i < response.sequences_size(); ++i) {
      Json other = SequenceDetails(response.sequences(i), response.seed());
      other["generated_text"] = prompt_ + response.sequences(i).text();
      details["best_of_sequences"].push_back(std::move(other));
    }
    return details;
  }

  std::shared_ptr<const ModelHost> host_;
  std::string prompt_;  // before the generated text; empty unless return_full_text
  bool details_ = false, full_text_ = false, list_ = false;
  size_t streamed_ = 0;
  int index_ = 0;
};

// POST /: generates with models that can, and embeds with the others.
Made Compatible(const ApiRequest& request) {
  const auto model = request.body.is_object() ? request.body.find("model") : request.body.end();
  const bool named = model != request.body.end() && model->is_string();
  const auto host = request.Find(named ? model->get<std::string>() : "");
  if (host.ok() && !CheckHead(RequestKind::kGenerate, (*host)->config()).ok()) {
    return TeiEmbed(request);
  }
  return GenerateTranslation::Create(request, /*stream=*/false, /*list=*/true);
}

std::vector<ApiField> GenerateFields() {
  return std::vector<ApiField>{
             {"inputs", "any", "Text or token ids.", true},
             {"parameters", "object", "Parameters of TGI, and DecodingOptions of quintet.v1."},
             {"stream", "boolean", "Answer with server-sent events."}} +
         CallFields();
}

}  // namespace

std::vector<ApiRoute> TgiRoutes() {
  constexpr ErrorStyle kStyle = ErrorStyle::kHuggingFace;
  const auto generate = [](bool stream) {
    return [stream](const ApiRequest& request) {
      return GenerateTranslation::Create(request, stream, /*list=*/false);
    };
  };
  std::vector<ApiRoute> routes;
  routes.push_back({"POST", "/", "Generate, or embed (TGI and TEI)", kStyle,
                    GenerateFields() + TeiEmbedFields(), true, Compatible});
  routes.push_back({"POST", "/generate", "Generate text (TGI)", kStyle, GenerateFields(), true,
                    generate(false)});
  routes.push_back({"POST", "/generate_stream", "Stream generated text (TGI)", kStyle,
                    GenerateFields(), true, generate(true)});
  return routes;
}

}  // namespace quintet
