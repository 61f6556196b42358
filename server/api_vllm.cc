// Routes of vLLM beyond OpenAI's, and of Jina's and Cohere's rerankers.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/api_rerank.h"
#include "server/api_route.h"
#include "server/api_usage.h"
#include "server/json_fields.h"
#include "server/oneof.h"
#include "server/proto_conversion.h"

namespace quintet {
namespace {

using Json = JsonValue;
using Made = absl::StatusOr<std::unique_ptr<Translation>>;

Json UsageOfTokens(uint64_t tokens) {
  return {{"prompt_tokens", tokens}, {"total_tokens", tokens}, {"completion_tokens", 0}};
}

Json ListHead(const std::string& id, const std::string& model) {
  return {{"id", id},
          {"object", "list"},
          {"created", absl::ToUnixSeconds(absl::Now())},
          {"model", model}};
}

// A member that is a text or an array of 1 to 64 texts.
std::vector<std::string> ReadTextOrTexts(const std::string& name, JsonFields* fields) {
  std::vector<std::string> texts;
  const nlohmann::json* const value = fields->Find(name);
  if (value != nullptr && value->is_string()) {
    fields->Read(name, &texts.emplace_back());
  } else {
    fields->ReadTexts(name, kMaxInputs, &texts);
  }
  return texts;
}

class ScoreTranslation final : public PairTranslation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<ScoreTranslation>();
    JsonFields fields(request.body);
    v1::CallOptions call;
    call.set_request_id(request.request_id);
    fields.ReadCall(&call);
    const std::vector<std::string> queries = ReadTextOrTexts("text_1", &fields);
    const std::vector<std::string> documents = ReadTextOrTexts("text_2", &fields);
    if (queries.size() != 1 && queries.size() != documents.size()) {
      fields.Fail("text_1", "expected one text, or as many as text_2");
    }
    if (documents.size() > kMaxInputs / 2) {
      fields.Fail("text_2",
                  absl::StrCat("must hold 1 to ", kMaxInputs / 2, ", got ", documents.size()));
    }
    QT_RETURN_IF_ERROR(fields.status());
    std::vector<Pair> pairs;
    std::vector<Names> names;
    for (size_t i = 0; i < documents.size(); ++i) {
      const size_t query = queries.size() == 1 ? 0 : i;
      pairs.push_back({queries[query], documents[i]});
      names.push_back({absl::StrCat("text_1[", query, "]"), absl::StrCat("text_2[", i, "]")});
    }
    QT_RETURN_IF_ERROR(made->AddPairs(request, call, pairs, names, /*only_templates=*/false));
    made->id_ = "score-" + request.request_id;
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    uint64_t tokens = 0;
    std::string model;
    const std::vector<double> scores = Scores(responses, &tokens, &model);
    Json data = Json::Array();
    for (size_t i = 0; i < scores.size(); ++i) {
      data.push_back({{"index", i}, {"object", "score"}, {"score", scores[i]}});
    }
    Json body = ListHead(id_, model);
    body["data"] = std::move(data);
    body["usage"] = UsageOfTokens(tokens);
    return JsonText(body);
  }

 private:
  std::string id_;
};

class VllmRerankTranslation final : public PairTranslation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<VllmRerankTranslation>();
    JsonFields fields(request.body);
    v1::CallOptions call;
    call.set_request_id(request.request_id);
    fields.ReadCall(&call);
    std::string query;
    if (fields.Find("query") == nullptr) fields.Fail("query", "missing: expected a string");
    fields.Read("query", &query);
    made->ReadDocuments(&fields);
    fields.Read("top_n", &made->top_n_);
    fields.Read("return_documents", &made->return_documents_);
    QT_RETURN_IF_ERROR(fields.status());
    QT_RETURN_IF_ERROR(made->AddDocuments(request, call, query, made->documents_, "documents"));
    made->id_ = "rerank-" + request.request_id;
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    uint64_t tokens = 0;
    std::string model;
    const std::vector<double> scores = Scores(responses, &tokens, &model);
    std::vector<size_t> order = Ranked(scores);
    if (top_n_.value_or(0) > 0) order.resize(std::min<size_t>(order.size(), *top_n_));
    Json results = Json::Array();
    for (const size_t index : order) {
      Json one = {{"index", index}, {"relevance_score", scores[index]}};
      if (return_documents_) one["document"] = {{"text", documents_[index]}};
      results.push_back(std::move(one));
    }
    return JsonText({{"id", id_},
                     {"model", model},
                     {"usage", {{"total_tokens", tokens}}},
                     {"results", std::move(results)}});
  }

 private:
  // Texts, or objects with a text.
  void ReadDocuments(JsonFields* fields) {
    const nlohmann::json* const value = fields->Find("documents");
    if (value == nullptr || !value->is_array() || value->empty() || value->size() > kMaxInputs) {
      return fields->Fail("documents",
                          absl::StrCat("expected an array of 1 to ", kMaxInputs, " texts"));
    }
    for (size_t i = 0; i < value->size(); ++i) {
      const nlohmann::json& one = (*value)[i];
      const auto member = one.is_object() ? one.find("text") : one.end();
      const nlohmann::json& text = one.is_object() && member != one.end() ? *member : one;
      if (!text.is_string()) {
        return fields->Fail(
            ExpectedJson(absl::StrCat("documents[", i, "]"), "a string, or {\"text\": ...}", one));
      }
      documents_.push_back(text.get<std::string>());
    }
  }

  std::vector<std::string> documents_;
  std::optional<uint32_t> top_n_;
  bool return_documents_ = true;
  std::string id_;
};

// Scores each item by the probability of the first label as the next token after a text that
// consists of the query and the item. Each item has one Score RPC, whose targets are the labels.
class GenerativeScoringTranslation final : public Translation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<GenerativeScoringTranslation>();
    JsonFields fields(request.body);
    v1::ScoreRequest proto;
    proto.mutable_call()->set_request_id(request.request_id);
    fields.ReadCall(proto.mutable_call());
    std::vector<v1::Input> query, items;
    bool list = false, item_first = false;
    fields.ReadInputs("query", &query, &list);
    if (list) fields.Fail("query", "expected a string or an array of token ids");
    fields.ReadInputs("items", &items, &list);
    if (!list) fields.Fail("items", "expected an array of strings or of token ids");
    fields.Read("item_first", &item_first);
    fields.Read("apply_softmax", &made->softmax_);
    made->ReadLabels(&fields, &proto);
    QT_RETURN_IF_ERROR(fields.status());
    size_t bytes = 0;
    for (const v1::Input& item : items) bytes += query[0].ByteSizeLong() + item.ByteSizeLong();
    QT_RETURN_IF_ERROR(CheckRepeatedText(request.context, "query", bytes));
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].content_case() != query[0].content_case()) {
        return absl::InvalidArgumentError(
            absl::StrCat("items[", i, "]: must be a string if query is one, otherwise token ids"));
      }
      *proto.mutable_input() = item_first ? items[i] : query[0];
      Append(item_first ? query[0] : items[i], proto.mutable_input());
      made->AddRpc("Score", proto);
    }
    made->id_ = "generative-scoring-" + request.request_id;
    return made;
  }

  FieldRenames names(size_t index) const override {
    FieldRenames names = {{"input", absl::StrCat("items[", index, "]")}};
    for (size_t i = 0; i < labels_; ++i) {
      names.emplace_back(absl::StrCat("targets[", i, "].token_ids.ids[0]"),
                         absl::StrCat("label_token_ids[", i, "]"));
    }
    return names;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    uint64_t tokens = 0;
    std::string model;
    Json data = Json::Array();
    for (size_t i = 0; i < responses.size(); ++i) {
      const auto response = Parsed<v1::ScoreResponse>(responses[i]);
      tokens += response.info().usage().input_tokens();
      model = ModelName(response.info());
      const double first = response.scores(0).log_prob();
      // The score is 1 / sum: with softmax_, the softmax of the first label over all labels;
      // otherwise the probability exp(first) of the first label.
      double sum = softmax_ ? 0.0 : std::exp(-first);
      for (const v1::TargetScore& score : response.scores()) {
        if (softmax_) sum += std::exp(score.log_prob() - first);
      }
      data.push_back({{"index", i}, {"object", "score"}, {"score", 1.0 / sum}});
    }
    Json body = ListHead(id_, model);
    body["data"] = std::move(data);
    body["usage"] = UsageOfTokens(tokens);
    return JsonText(body);
  }

 private:
  void ReadLabels(JsonFields* fields, v1::ScoreRequest* proto) {
    const nlohmann::json* const value = fields->Find("label_token_ids");
    v1::Input ids;
    if (value == nullptr) return fields->Fail("label_token_ids", "missing: expected token ids");
    if (value->is_array()) fields->Fail(ReadInput("label_token_ids", *value, &ids));
    labels_ = static_cast<size_t>(ids.token_ids().ids_size());
    if (fields->status().ok() && (labels_ == 0 || labels_ > kMaxTargets)) {
      fields->Fail("label_token_ids",
                   absl::StrCat("must be an array of 1 to ", kMaxTargets, " token ids, got ",
                                value->is_array() ? absl::StrCat(labels_) : value->type_name()));
    }
    for (const uint32_t id : ids.token_ids().ids()) {
      MutableTokenIds(proto->add_targets())->add_ids(id);
    }
  }
  static void Append(const v1::Input& from, v1::Input* to) {
    if (from.has_text()) {
      to->mutable_text()->append(from.text());
    } else {
      MutableTokenIds(to)->MergeFrom(from.token_ids());
    }
  }

  bool softmax_ = true;
  size_t labels_ = 0;
  std::string id_;
};

class ClassifyTranslation final : public Translation {
 public:
  static Made Create(const ApiRequest& request) {
    auto made = std::make_unique<ClassifyTranslation>();
    JsonFields fields(request.body);
    v1::ClassifyRequest proto;
    proto.mutable_call()->set_request_id(request.request_id);
    fields.ReadCall(proto.mutable_call());
    std::vector<v1::Input> inputs;
    bool list = false;
    fields.ReadInputs("input", &inputs, &list);
    QT_RETURN_IF_ERROR(fields.status());
    for (v1::Input& input : inputs) *proto.add_inputs() = std::move(input);
    made->names_ = {{{"inputs", "input"}}};
    made->AddRpc("Classify", proto);
    made->id_ = "classify-" + request.request_id;
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    const auto response = Parsed<v1::ClassifyResponse>(responses[0]);
    Json data = Json::Array();
    for (int i = 0; i < response.results_size(); ++i) {
      const auto& labels = response.results(i).labels();
      if (labels.empty()) {
        return absl::FailedPreconditionError("this model does not label texts");
      }
      const auto best =
          std::max_element(labels.begin(), labels.end(),
                           [](const auto& a, const auto& b) { return a.logit() < b.logit(); });
      Json probabilities = Json::Array();
      for (const v1::LabelScore& label : labels) probabilities.push_back(label.probability());
      data.push_back({{"index", i},
                      {"label", best->label()},
                      {"probs", std::move(probabilities)},
                      {"num_classes", labels.size()}});
    }
    Json body = ListHead(id_, ModelName(response.info()));
    body["data"] = std::move(data);
    body["usage"] = UsageOf(response.info());
    return JsonText(body);
  }

 private:
  std::string id_;
};

}  // namespace

std::vector<ApiRoute> VllmRoutes() {
  const ApiField user = {"user", "any", "Accepted and ignored."};
  std::vector<ApiRoute> routes;
  routes.push_back({"POST", "/score", "Score pairs of texts (vLLM)", ErrorStyle::kOpenAi,
                    std::vector<ApiField>{{"text_1", "any", "One text, or 1 to 32.", true},
                                          {"text_2", "any", "One text, or 1 to 32.", true},
                                          user} +
                        CallFields(),
                    false, ScoreTranslation::Create});
  routes.push_back({"POST", "/v1/rerank", "Order texts by a query (vLLM, Jina, Cohere)",
                    ErrorStyle::kOpenAi,
                    std::vector<ApiField>{{"query", "string", "The query.", true},
                                          {"documents", "array", "1 to 64 texts.", true},
                                          {"top_n", "integer", "Number of results. 0: all."},
                                          {"return_documents", "boolean", "Default true."},
                                          user} +
                        CallFields(),
                    false, VllmRerankTranslation::Create});
  routes.push_back(
      {"POST", "/classify", "Label texts (vLLM)", ErrorStyle::kOpenAi,
       std::vector<ApiField>{{"input", "any", "Text, or 1 to 64 of them.", true}, user} +
           CallFields(),
       false, ClassifyTranslation::Create});
  routes.push_back(
      {"POST", "/generative_scoring", "Probability of a next token (vLLM)", ErrorStyle::kOpenAi,
       std::vector<ApiField>{
           {"query", "any", "Text or token ids that are part of every input.", true},
           {"items", "array", "1 to 64 texts, or arrays of token ids if query is one.", true},
           {"label_token_ids", "array", "1 to 64 token ids. The score is that of the first.", true},
           {"apply_softmax", "boolean",
            "Probability among the labels (default true), or among all tokens."},
           {"item_first", "boolean", "Item before query. Default false."},
           user} +
           CallFields(),
       false, GenerativeScoringTranslation::Create});
  return routes;
}

}  // namespace quintet
