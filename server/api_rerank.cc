#include "server/api_rerank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/request.h"
#include "kernels/base/status_macros.h"
#include "server/oneof.h"
#include "server/text_templates.h"

namespace quintet {
namespace {

std::vector<std::pair<absl::string_view, absl::string_view>> ValuesOf(
    const PairTranslation::Pair& pair) {
  return {{"query", pair.query}, {"document", pair.document}};
}

absl::Status AddIds(const ModelHost& host, const std::string& text, const char* setting,
                    v1::Input* to) {
  QT_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      host.tokenizer()->Encode(text, /*add_special_tokens=*/false));
  if (ids.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(setting, " has no tokens for this model"));
  }
  for (const int32_t id : ids) MutableTokenIds(to)->add_ids(static_cast<uint32_t>(id));
  return absl::OkStatus();
}

}  // namespace

double Cosine(absl::string_view a, absl::string_view b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t at = 0; at + sizeof(float) <= std::min(a.size(), b.size()); at += sizeof(float)) {
    float x = 0, y = 0;
    std::memcpy(&x, a.data() + at, sizeof(x));
    std::memcpy(&y, b.data() + at, sizeof(y));
    ab += static_cast<double>(x) * y;
    aa += static_cast<double>(x) * x;
    bb += static_cast<double>(y) * y;
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0.0;
}

absl::Status PairTranslation::AddTargets(const ModelHost& host, const Pair& pair,
                                         v1::ScoreRequest* proto) const {
  const TextTemplates& templates = host.options().templates;
  if (kind_ == Kind::kLikelihood) {
    const std::string target = FillTemplate(templates.rerank_target, ValuesOf(pair));
    return AddIds(host, target, "rerank-target", proto->add_targets());
  }
  QT_RETURN_IF_ERROR(AddIds(host, templates.rerank_true, "rerank-true", proto->add_targets()));
  return AddIds(host, templates.rerank_false, "rerank-false", proto->add_targets());
}

absl::Status PairTranslation::AddPairs(const ApiRequest& request, const v1::CallOptions& call,
                                       const std::vector<Pair>& pairs,
                                       const std::vector<Names>& names, bool only_templates) {
  QT_ASSIGN_OR_RETURN(const std::shared_ptr<ModelHost> host, request.Find(call.model()));
  const TextTemplates& templates = host->options().templates;
  size_t bytes = 0;
  for (const Pair& pair : pairs) bytes += pair.query.size() + pair.document.size();
  QT_RETURN_IF_ERROR(CheckRepeatedText(request.context, names[0].query, bytes));
  pairs_ = pairs.size();
  if (templates.rerank.empty()) {
    if (only_templates) {
      return absl::FailedPreconditionError(
          "this model cannot rerank: set rerank and rerank-true and rerank-false, or "
          "rerank-target, in its section [models.NAME] of the configuration file");
    }
    v1::EncodeRequest proto;
    *proto.mutable_call() = call;
    for (const Pair& pair : pairs) {
      proto.add_inputs()->set_text(pair.query);
      proto.add_inputs()->set_text(pair.document);
    }
    names_ = {FieldRenames()};
    for (size_t i = 0; i < names.size(); ++i) {
      names_[0].push_back({absl::StrCat("inputs[", 2 * i, "]"), names[i].query});
      names_[0].push_back({absl::StrCat("inputs[", 2 * i + 1, "]"), names[i].document});
    }
    AddRpc("Encode", proto);
    return absl::OkStatus();
  }
  // AddTargets needs a tokenizer, which some models lack.
  if (host->tokenizer() == nullptr) {
    return absl::FailedPreconditionError("this model has no tokenizer");
  }
  kind_ = templates.rerank_target.empty() ? Kind::kProbability : Kind::kLikelihood;
  names_.clear();
  for (size_t i = 0; i < pairs.size(); ++i) {
    v1::ScoreRequest proto;
    *proto.mutable_call() = call;
    proto.mutable_input()->set_text(FillTemplate(templates.rerank, ValuesOf(pairs[i])));
    QT_RETURN_IF_ERROR(AddTargets(*host, pairs[i], &proto));
    AddRpc("Score", proto);
    names_.push_back({{"input", names[i].document}, {"targets[0]", names[i].query}});
  }
  return absl::OkStatus();
}

absl::Status PairTranslation::AddDocuments(const ApiRequest& request, const v1::CallOptions& call,
                                           const std::string& query,
                                           const std::vector<std::string>& documents,
                                           absl::string_view name) {
  std::vector<Pair> pairs;
  std::vector<Names> names;
  for (size_t i = 0; i < documents.size(); ++i) {
    pairs.push_back({query, documents[i]});
    names.push_back({"query", absl::StrCat(name, "[", i, "]")});
  }
  return AddPairs(request, call, pairs, names, /*only_templates=*/true);
}

std::vector<size_t> PairTranslation::Ranked(const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

std::vector<double> PairTranslation::Scores(const std::vector<grpc::ByteBuffer>& responses,
                                            uint64_t* tokens, std::string* model) const {
  std::vector<double> scores;
  if (kind_ == Kind::kCosine) {
    const auto response = Parsed<v1::EncodeResponse>(responses[0]);
    *tokens += response.info().usage().input_tokens();
    *model = ModelName(response.info());
    for (int i = 0; i + 1 < response.embeddings_size(); i += 2) {
      scores.push_back(
          Cosine(response.embeddings(i).values(), response.embeddings(i + 1).values()));
    }
    return scores;
  }
  for (const grpc::ByteBuffer& bytes : responses) {
    const auto response = Parsed<v1::ScoreResponse>(bytes);
    *tokens += response.info().usage().input_tokens();
    *model = ModelName(response.info());
    const double first = response.scores(0).log_prob();
    if (kind_ == Kind::kLikelihood) {
      scores.push_back(first / std::max<uint32_t>(response.scores(0).tokens(), 1));
    } else {
      // The softmax of the two log-probabilities.
      scores.push_back(1.0 / (1.0 + std::exp(response.scores(1).log_prob() - first)));
    }
  }
  return scores;
}

}  // namespace quintet
