// Routes of Text Embeddings Inference.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "kernels/base/status_macros.h"
#include "server/api_rerank.h"
#include "server/api_route.h"
#include "server/api_tei.h"
#include "server/json_fields.h"
#include "server/proto_conversion.h"

namespace quintet {
namespace {

using Json = JsonValue;
using Made = absl::StatusOr<std::unique_ptr<Translation>>;

// Reads the JSON members that all TEI routes have. Truncation at the left is an error.
void ReadTeiCall(const ApiRequest& request, JsonFields* fields, v1::CallOptions* call) {
  call->set_request_id(request.request_id);
  fields->ReadCall(call);
  fields->Refuse("truncation_direction", {"\"Right\"", "\"right\""}, "only Right is supported");
  fields->Refuse("dimensions", {}, "not supported: the vectors have the model's size");
}

class EmbedTranslation final : public Translation {
 public:
  static Made Create(const ApiRequest& request, bool all) {
    auto made = std::make_unique<EmbedTranslation>();
    JsonFields fields(request.body);
    v1::EncodeRequest proto;
    ReadTeiCall(request, &fields, proto.mutable_call());
    // /embed_all, unlike /embed, does not normalize embeddings by default, as in TEI.
    proto.mutable_options()->set_normalize(!all);
    fields.ReadEncodeOptions(proto.mutable_options());
    if (all) {
      if (proto.options().pooling() != v1::POOLING_UNSPECIFIED) {
        fields.Fail("pooling", "cannot be set: /embed_all returns one vector per token");
      }
      proto.mutable_options()->set_pooling(v1::POOLING_NONE);
    } else if (proto.options().pooling() == v1::POOLING_NONE) {
      fields.Fail("pooling", "none is not supported here: use /embed_all");
    }
    std::vector<v1::Input> inputs;
    bool list = false;
    fields.ReadInputs("inputs", &inputs, &list);
    QT_RETURN_IF_ERROR(fields.status());
    for (v1::Input& input : inputs) *proto.add_inputs() = std::move(input);
    made->all_ = all;
    made->AddRpc("Encode", proto);
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    const auto response = Parsed<v1::EncodeResponse>(responses[0]);
    std::string body = "[";
    for (const v1::Embedding& embedding : response.embeddings()) {
      if (body.size() > 1) body.push_back(',');
      if (!all_) {
        AppendRow(embedding.values(), &body);
        continue;
      }
      body.push_back('[');
      const size_t row_bytes = embedding.columns() * sizeof(float);
      for (uint32_t row = 0; row < embedding.rows(); ++row) {
        if (row > 0) body.push_back(',');
        AppendRow(absl::string_view(embedding.values()).substr(row * row_bytes, row_bytes), &body);
      }
      body.push_back(']');
    }
    return body + "]";
  }

 private:
  bool all_ = false;
};

class SimilarityTranslation final : public Translation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<SimilarityTranslation>();
    JsonFields fields(request.body);
    v1::EncodeRequest proto;
    static const nlohmann::json empty = nlohmann::json::object();
    const nlohmann::json* const parameters = fields.Find("parameters");
    JsonFields options(parameters == nullptr ? empty : *parameters, "parameters.");
    ReadTeiCall(request, &options, proto.mutable_call());
    fields.ReadCall(proto.mutable_call());
    options.ReadEncodeOptions(proto.mutable_options());
    const nlohmann::json* const inputs = fields.Find("inputs");
    JsonFields texts(inputs == nullptr ? empty : *inputs, "inputs.");
    std::string source;
    if (texts.Find("source_sentence") == nullptr) {
      texts.Fail("source_sentence", "missing: expected a string");
    }
    texts.Read("source_sentence", &source);
    std::vector<std::string> sentences;
    texts.ReadTexts("sentences", kMaxInputs - 1, &sentences);
    fields.Fail(options.status());
    fields.Fail(texts.status());
    QT_RETURN_IF_ERROR(fields.status());
    proto.add_inputs()->set_text(source);
    made->names_[0].push_back({"inputs[0]", "inputs.source_sentence"});
    for (size_t i = 0; i < sentences.size(); ++i) {
      proto.add_inputs()->set_text(sentences[i]);
      made->names_[0].push_back(
          {absl::StrCat("inputs[", i + 1, "]"), absl::StrCat("inputs.sentences[", i, "]")});
    }
    made->AddRpc("Encode", proto);
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    const auto response = Parsed<v1::EncodeResponse>(responses[0]);
    Json scores = Json::Array();
    for (int i = 1; i < response.embeddings_size(); ++i) {
      scores.push_back(Cosine(response.embeddings(0).values(), response.embeddings(i).values()));
    }
    return JsonText(scores);
  }
};

class TeiRerankTranslation final : public PairTranslation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<TeiRerankTranslation>();
    JsonFields fields(request.body);
    v1::CallOptions call;
    ReadTeiCall(request, &fields, &call);
    std::string query;
    if (fields.Find("query") == nullptr) fields.Fail("query", "missing: expected a string");
    fields.Read("query", &query);
    fields.ReadTexts("texts", kMaxInputs, &made->texts_);
    bool raw = false;
    fields.Read("raw_scores", &raw);
    fields.Read("return_text", &made->return_text_);
    QT_RETURN_IF_ERROR(fields.status());
    made->raw_ = raw;
    QT_RETURN_IF_ERROR(made->AddDocuments(request, call, query, made->texts_, "texts"));
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    uint64_t tokens = 0;
    std::string model;
    const std::vector<double> scores = Scores(responses, &tokens, &model);
    const std::vector<size_t> order = Ranked(scores);
    Json ranked = Json::Array();
    for (const size_t index : order) {
      // The raw score is log_prob(rerank-true) - log_prob(rerank-false), here computed from p.
      const double p = scores[index];
      Json one = {{"index", index},
                  {"score", raw_ && probabilities() ? std::log(p / (1.0 - p)) : p}};
      if (return_text_) one["text"] = texts_[index];
      ranked.push_back(std::move(one));
    }
    return JsonText(ranked);
  }

 private:
  std::vector<std::string> texts_;
  bool raw_ = false, return_text_ = false;
};

class PredictTranslation final : public Translation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<PredictTranslation>();
    JsonFields fields(request.body);
    v1::ClassifyRequest proto;
    ReadTeiCall(request, &fields, proto.mutable_call());
    fields.Read("raw_scores", &made->raw_);
    std::vector<v1::Input> inputs;
    // TEI's clients send [["a"], ["b"]], because TEI reads an inner array of two texts as a pair.
    // ReadInputs rejects pairs.
    fields.ReadInputs("inputs", &inputs, &made->list_, /*wrapped_texts=*/true);
    QT_RETURN_IF_ERROR(fields.status());
    for (v1::Input& input : inputs) *proto.add_inputs() = std::move(input);
    made->AddRpc("Classify", proto);
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    const auto response = Parsed<v1::ClassifyResponse>(responses[0]);
    std::string body = list_ ? "[" : "";
    for (const v1::Classification& result : response.results()) {
      if (!result.tokens().empty()) {
        return absl::FailedPreconditionError(
            "this model labels tokens: /predict is only for models that label texts");
      }
      if (body.size() > 1) body.push_back(',');
      std::vector<const v1::LabelScore*> labels;
      for (const v1::LabelScore& label : result.labels()) labels.push_back(&label);
      std::stable_sort(labels.begin(), labels.end(),
                       [](const auto* a, const auto* b) { return a->logit() > b->logit(); });
      body.push_back('[');
      for (const v1::LabelScore* label : labels) {
        if (body.back() == '}') body.push_back(',');
        body += R"({"score":)";
        AppendFloat(raw_ ? label->logit() : label->probability(), &body);
        body += R"(,"label":)";
        AppendJsonString(label->label(), &body);
        body.push_back('}');
      }
      body.push_back(']');
    }
    return body + (list_ ? "]" : "");
  }

 private:
  bool raw_ = false, list_ = false;
};

class TokenizeTranslation final : public Translation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<TokenizeTranslation>();
    JsonFields fields(request.body);
    v1::TokenizeRequest proto;
    ReadTeiCall(request, &fields, proto.mutable_call());
    const nlohmann::json* const inputs = fields.Find("inputs");
    if (inputs != nullptr && inputs->is_string()) {
      made->texts_.emplace_back();
      fields.Read("inputs", &made->texts_.back());
    } else {
      fields.ReadTexts("inputs", kMaxInputs, &made->texts_);
    }
    QT_RETURN_IF_ERROR(fields.status());
    made->names_.clear();
    for (size_t i = 0; i < made->texts_.size(); ++i) {
      proto.set_text(made->texts_[i]);
      made->AddRpc("Tokenize", proto);
      made->names_.push_back({{"text", absl::StrCat("inputs[", i, "]")}});
    }
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    Json lists = Json::Array();
    for (size_t i = 0; i < responses.size(); ++i) {
      const auto response = Parsed<v1::TokenizeResponse>(responses[i]);
      Json tokens = Json::Array();
      // TEI's offsets are in characters, not in bytes. The tokens are in the order of the text.
      const std::string& text = texts_[i];
      size_t at = 0, characters = 0;
      const auto characters_at = [&](size_t byte) {
        if (byte < at) at = characters = 0;
        for (; at < std::min(byte, text.size()); ++at) characters += (text[at] & 0xC0) != 0x80;
        return characters;
      };
      for (const v1::Token& token : response.tokens()) {
        const bool special = token.begin_byte() == token.end_byte();
        Json one = {{"id", token.id()}, {"text", token.piece()}, {"special", special}};
        one["start"] = special ? Json() : Json(characters_at(token.begin_byte()));
        one["stop"] = special ? Json() : Json(characters_at(token.end_byte()));
        tokens.push_back(std::move(one));
      }
      lists.push_back(std::move(tokens));
    }
    return JsonText(lists);
  }

 private:
  std::vector<std::string> texts_;
};

class DecodeTranslation final : public Translation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<DecodeTranslation>();
    JsonFields fields(request.body);
    v1::DetokenizeRequest proto;
    ReadTeiCall(request, &fields, proto.mutable_call());
    bool skip = true;
    fields.Read("skip_special_tokens", &skip);
    proto.set_skip_special_tokens(skip);
    std::vector<v1::Input> lists;
    bool several = false;
    fields.ReadInputs("ids", &lists, &several);
    for (const v1::Input& ids : lists) {
      if (ids.has_text()) fields.Fail("ids", "expected an array of token ids, got a string");
    }
    QT_RETURN_IF_ERROR(fields.status());
    made->names_.clear();
    for (size_t i = 0; i < lists.size(); ++i) {
      *proto.mutable_token_ids() = lists[i].token_ids().ids();
      made->AddRpc("Detokenize", proto);
      made->names_.push_back({{"token_ids", several ? absl::StrCat("ids[", i, "]") : "ids"}});
    }
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    Json texts = Json::Array();
    for (const grpc::ByteBuffer& bytes : responses) {
      texts.push_back(Parsed<v1::DetokenizeResponse>(bytes).text());
    }
    return JsonText(texts);
  }
};

class InfoTranslation final : public Translation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<InfoTranslation>();
    v1::GetModelInfoRequest proto;
    absl::string_view target = request.http.target;
    if (const size_t at = target.find("?model="); at != absl::string_view::npos) {
      proto.set_model(std::string(target.substr(at + 7)));
    }
    made->AddRpc("GetModelInfo", proto);
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    const auto info = Parsed<v1::GetModelInfoResponse>(responses[0]);
    Json type = {{"embedding", {{"pooling", "mean"}}}};
    if (info.head() == "sequence classification") {
      Json ids = Json::Object(), labels = Json::Object();
      for (int i = 0; i < info.labels_size(); ++i) {
        ids[absl::StrCat(i)] = info.labels(i);
        labels[info.labels(i)] = i;
      }
      type = {{"classifier", {{"id2label", std::move(ids)}, {"label2id", std::move(labels)}}}};
    } else if (info.head() == "language model") {
      type = {{"generator", Json::Object()}};
    }
    const v1::Limits& limits = info.limits();
    return JsonText({{"model_id", info.model()},
                     {"model_sha", info.weights_sha256()},
                     {"model_dtype", info.dtype()},
                     {"model_type", std::move(type)},
                     {"family", info.family()},
                     {"parameters", info.parameters()},
                     {"vocab_size", info.vocab()},
                     {"max_running_sequences", limits.max_running_sequences()},
                     {"encoder_cache_bytes", limits.encoder_cache_bytes()},
                     {"max_concurrent_requests", limits.max_queue_requests()},
                     {"max_input_length", limits.max_input_tokens()},
                     {"max_batch_tokens", limits.max_queue_tokens()},
                     {"max_batch_requests", nullptr},
                     {"max_client_batch_size", limits.max_inputs()},
                     {"max_total_tokens", limits.max_input_tokens() + limits.max_new_tokens()},
                     {"tokenization_workers", nullptr},
                     {"auto_truncate", false},
                     {"version", info.version()},
                     {"sha", nullptr},
                     {"docker_label", nullptr}});
  }
};

std::vector<ApiField> TeiFields() {
  return std::vector<ApiField>{{"truncation_direction", "string", "Only Right."},
                               {"dimensions", "integer", "Not supported."}} +
         CallFields();
}

std::vector<ApiField> InputFields(const char* text) { return {{"inputs", "any", text, true}}; }

}  // namespace

Made TeiEmbed(const ApiRequest& request) { return EmbedTranslation::Create(request, false); }

std::vector<ApiField> TeiEmbedFields() {
  return InputFields("Text, token ids, or 1 to 64 of them.") + EncodeFields() + TeiFields();
}

std::vector<ApiRoute> TeiRoutes() {
  constexpr ErrorStyle kStyle = ErrorStyle::kHuggingFace;
  std::vector<ApiRoute> routes;
  routes.push_back(
      {"POST", "/embed", "Embed texts (TEI)", kStyle, TeiEmbedFields(), false, TeiEmbed});
  routes.push_back(
      {"POST", "/embed_all", "One vector per token (TEI)", kStyle, TeiEmbedFields(), false,
       [](const ApiRequest& request) { return EmbedTranslation::Create(request, true); }});
  routes.push_back({"POST", "/embed_sparse", "Not supported (TEI)", kStyle, TeiEmbedFields(), false,
                    [](const ApiRequest&) -> Made {
                      return absl::FailedPreconditionError(
                          "no served model has sparse embeddings: use /embed");
                    }});
  routes.push_back(
      {"POST", "/similarity", "Cosine of a text and 1 to 63 others (TEI)", kStyle,
       std::vector<ApiField>{{"inputs", "object", "source_sentence and sentences.", true},
                             {"parameters", "object", "prompt_name, truncate and so on."}} +
           CallFields(),
       false, SimilarityTranslation::Create});
  routes.push_back({"POST", "/rerank", "Order texts by a query (TEI)", kStyle,
                    std::vector<ApiField>{{"query", "string", "The query.", true},
                                          {"texts", "array", "1 to 64 texts.", true},
                                          {"raw_scores", "boolean", "Logits, not probabilities."},
                                          {"return_text", "boolean", "Repeat the texts."}} +
                        TeiFields(),
                    false, TeiRerankTranslation::Create});
  routes.push_back({"POST", "/predict", "Label texts (TEI)", kStyle,
                    InputFields("Text, token ids, or 1 to 64 of them.") +
                        std::vector<ApiField>{{"raw_scores", "boolean", "Logits."}} + TeiFields(),
                    false, PredictTranslation::Create});
  routes.push_back({"POST", "/tokenize", "Tokens of texts (TEI)", kStyle,
                    InputFields("Text, or 1 to 64 of them.") + TeiFields(), false,
                    TokenizeTranslation::Create});
  routes.push_back(
      {"POST", "/decode", "Text of token ids (TEI)", kStyle,
       std::vector<ApiField>{{"ids", "array", "Token ids, or 1 to 64 arrays of them.", true},
                             {"skip_special_tokens", "boolean", "Default true."}} +
           TeiFields(),
       false, DecodeTranslation::Create});
  routes.push_back({"GET",
                    "/info",
                    "Properties of the model (TEI and TGI); ?model=NAME",
                    kStyle,
                    {},
                    false,
                    InfoTranslation::Create});
  return routes;
}

}  // namespace quintet
