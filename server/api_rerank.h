// Scores of pairs of a query and a document, for /rerank, /v1/rerank and /score. If the model has
// rerank templates (text_templates.h), one Score RPC computes the score of each pair. Otherwise one
// Encode RPC embeds all texts, and the score of a pair is the cosine of its two embeddings.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api_route.h"
#include "server/json_fields.h"

namespace quintet {

class PairTranslation : public Translation {
 public:
  struct Pair {
    std::string query, document;
  };

 protected:
  // The names that errors use for the two fields of a pair.
  struct Names {
    std::string query, document;
  };
  // Adds the RPCs. `names[i]`: the names of the texts of pair i. Returns NOT_FOUND for an unknown
  // model, UNAVAILABLE while it is loading, FAILED_PRECONDITION if it cannot score pairs or, with
  // `only_templates`, if it has no rerank templates and could only compare embeddings.
  absl::Status AddPairs(const ApiRequest& request, const v1::CallOptions& call,
                        const std::vector<Pair>& pairs, const std::vector<Names>& names,
                        bool only_templates);
  // Adds the RPCs for the pairs of `query` and each document. Errors call document i NAME[i], where
  // NAME is `name`. The model must have rerank templates. Returns the errors of AddPairs.
  absl::Status AddDocuments(const ApiRequest& request, const v1::CallOptions& call,
                            const std::string& query, const std::vector<std::string>& documents,
                            absl::string_view name);
  // Returns the indices of the scores, largest score first.
  static std::vector<size_t> Ranked(const std::vector<double>& scores);
  // Returns the scores, in the order of the pairs. Adds the number of input tokens to *tokens and
  // sets *model to the name of the model.
  std::vector<double> Scores(const std::vector<grpc::ByteBuffer>& responses, uint64_t* tokens,
                             std::string* model) const;
  // Whether scores are probabilities: a softmax over the targets rerank-true and rerank-false.
  bool probabilities() const { return kind_ == Kind::kProbability; }

 private:
  enum class Kind { kProbability, kLikelihood, kCosine };
  absl::Status AddTargets(const ModelHost& host, const Pair& pair, v1::ScoreRequest* proto) const;

  Kind kind_ = Kind::kCosine;
  size_t pairs_ = 0;
};

// The cosine of two FP32 vectors of the same size; 0 if one of them is 0.
double Cosine(absl::string_view a, absl::string_view b);

}  // namespace quintet
