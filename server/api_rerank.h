// Scores of pairs of a query and a document, for /rerank, /v1/rerank and /score: one Score RPC per
// document by the templates of the model (text_templates.h), or, for a model without them that
// embeds texts, the cosine of the two embeddings by one Encode RPC.
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
  // Adds the RPCs. `names[i]` are those of pair i. `only_templates`: the cosine is no answer.
  // FAILED_PRECONDITION: the model cannot score pairs. NOT_FOUND, UNAVAILABLE: no such model, or it
  // is loading.
  absl::Status AddPairs(const ApiRequest& request, const v1::CallOptions& call,
                        const std::vector<Pair>& pairs, const std::vector<Names>& names,
                        bool only_templates);
  // Returns the scores, in the order of the pairs, and adds their input tokens to *tokens and sets
  // *model.
  std::vector<double> Scores(const std::vector<grpc::ByteBuffer>& responses, uint64_t* tokens,
                             std::string* model) const;
  // Whether the scores are probabilities of a target against another.
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
