#include "tests/golden/served.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/golden/engine_run.h"

namespace quintet {
namespace {

std::vector<TensorResult> Renamed(std::vector<TensorResult> results) {
  for (TensorResult& r : results) r.name += " (served)";
  return results;
}

// Sends every input of a golden case to the engine and compares the hidden states or label logits
// that it returns with the recorded ones. They are compared packed: the rows of all inputs follow
// each other without padding.
absl::StatusOr<std::vector<TensorResult>> CheckValues(const GoldenCase& c, RequestKind kind,
                                                      Model* model) {
  std::vector<Request> requests;
  for (const auto& input : c.inputs) {
    Request request;
    request.kind = kind;
    request.input = input;
    request.pooling = Pooling::kNone;
    requests.push_back(std::move(request));
  }
  absl::StatusOr<std::vector<Result>> served = ServeAll(model, std::move(requests));
  if (!served.ok()) return served.status();
  Outputs outputs;
  for (const Result& result : *served) {
    if (c.kind == "qa") {
      for (size_t i = 0; i + 1 < result.values.size(); i += 2) {
        outputs["start_logits"].push_back(result.values[i]);
        outputs["end_logits"].push_back(result.values[i + 1]);
      }
      continue;
    }
    auto& values = outputs[kind == RequestKind::kEncode ? "encoder_last_hidden_state" : "logits"];
    values.insert(values.end(), result.values.begin(), result.values.end());
  }
  absl::StatusOr<std::vector<TensorResult>> results = CompareOutputs(c, outputs);
  if (!results.ok()) return results.status();
  return Renamed(*std::move(results));
}

double LogProb(const float* logits, int64_t vocab, int32_t token) {
  const double max = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - max);
  return logits[token] - max - std::log(sum);
}

// One score request, made from row `row` of a golden case: the engine returns the log-probabilities
// of the tokens of `target` after `input`. The recorded logits for the first token of `target` are
// in column `first_column`, those for the next tokens in the columns after it.
struct ScoredRow {
  size_t row;
  size_t first_column;
  std::vector<int32_t> input, target;
};

std::vector<ScoredRow> RowsToScore(const GoldenCase& c, const ModelConfig& config) {
  std::vector<ScoredRow> rows;
  for (size_t r = 0; r < c.inputs.size(); ++r) {
    const std::vector<int32_t>& input = c.inputs[r];
    if (c.kind == "seq2seq") {
      const std::vector<int32_t>& decoder = c.decoder_inputs[r];
      if (decoder.size() < 2 || decoder[0] != config.decoder_start_id) continue;
      rows.push_back({r, 0, input, {decoder.begin() + 1, decoder.end()}});
    } else if (input.size() > 1) {
      const size_t prompt = (input.size() + 1) / 2;
      rows.push_back({r,
                      static_cast<size_t>(c.columns[r][prompt - 1]),
                      {input.begin(), input.begin() + static_cast<int64_t>(prompt)},
                      {input.begin() + static_cast<int64_t>(prompt), input.end()}});
    }
  }
  return rows;
}

absl::StatusOr<std::vector<TensorResult>> CheckScores(const GoldenCase& c, Model* model) {
  const auto golden = c.expected.find(c.kind == "seq2seq" ? "decoder_logits" : "logits");
  if (golden == c.expected.end()) return std::vector<TensorResult>();
  if (golden->second.shape.size() != 3) {
    return absl::InvalidArgumentError("logits: expected [rows, positions, vocab]");
  }
  const std::vector<ScoredRow> rows = RowsToScore(c, model->config());
  std::vector<Request> requests;
  for (const ScoredRow& row : rows) {
    Request request;
    request.kind = RequestKind::kScore;
    request.input = row.input;
    request.targets = {row.target, {row.target[0]}};
    requests.push_back(std::move(request));
  }
  absl::StatusOr<std::vector<Result>> served = ServeAll(model, std::move(requests));
  if (!served.ok()) return served.status();

  const int64_t columns = golden->second.shape[1], vocab = golden->second.shape[2];
  double worst = 0, largest = 0;
  const auto note = [&](double error) {
    if (!(error <= worst))
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    const ScoredRow& row = rows[i];
    const Result& result = (*served)[i];
    if (result.targets.size() != 2 || result.targets[0].tokens.size() != row.target.size()) {
      return absl::InternalError(
          "score: the number of log-probabilities differs from the number of target tokens");
    }
    double total = 0;
    for (size_t t = 0; t < row.target.size(); ++t) {
      const int64_t position =
          static_cast<int64_t>(row.row) * columns + static_cast<int64_t>(row.first_column + t);
      const float* logits = golden->second.values.data() + position * vocab;
      const double want = LogProb(logits, vocab, row.target[t]);
      note(std::abs(result.targets[0].tokens[t].log_prob - want));
      total += result.targets[0].tokens[t].log_prob;
      for (int64_t v = 0; v < vocab; ++v) largest = std::max(largest, std::abs(double{logits[v]}));
    }
    note(std::abs(result.targets[0].total - total));
    note(std::abs(result.targets[1].total - result.targets[0].tokens[0].log_prob));
  }
  if (rows.empty()) return std::vector<TensorResult>();
  return std::vector<TensorResult>{{"log-probabilities (served)", worst / largest}};
}

}  // namespace

absl::StatusOr<std::vector<TensorResult>> CheckServed(const GoldenCase& c, Model* model) {
  if (c.kind == "encoder") return CheckValues(c, RequestKind::kEncode, model);
  if (c.kind == "seq2seq" || c.kind == "causal") return CheckScores(c, model);
  return CheckValues(c, RequestKind::kClassify, model);
}

}  // namespace quintet
