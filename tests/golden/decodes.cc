#include "tests/golden/decodes.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/golden/engine_run.h"
#include "tests/golden/scores.h"

namespace quintet {
namespace {

// A submitted request and the recorded result that it must reproduce. One request decodes one input
// row of the case with one of its option sets.
struct Pending {
  std::string where;
  GoldenDecode::Row golden;
  std::vector<int32_t> prompt;
  int32_t filler;
  std::shared_ptr<ResultCollector> sink;
};

// Converts the recorded output of FAT5's greedy generation loop (start token 0, EOS 1) to a
// GoldenDecode. The loop overwrites the last column of its output with EOS. That id is not a
// prediction; therefore it is not compared.
GoldenDecode GreedyAsDecode(const GoldenCase& c) {
  GoldenDecode decode;
  decode.options.max_new_tokens = static_cast<uint32_t>(c.greedy_max_new - 1);
  decode.options.eos_token_ids = {1};
  decode.options.decoder_start_token_id = 0;
  decode.options.pad_token_id = 0;
  for (const auto& row : c.greedy) {
    std::vector<int32_t> ids(row.begin(),
                             row.begin() + std::min<int64_t>(c.greedy_max_new, row.size()));
    decode.rows.push_back({.sequences = {ids}, .scores = {}, .smallest_gap = 1.0});
  }
  return decode;
}

absl::StatusOr<Pending> SubmitRow(const GoldenCase& c, const GoldenDecode& decode, size_t row,
                                  const ModelConfig& config, Engine* engine) {
  std::vector<int32_t> input = c.inputs[row];
  if (!config.has_encoder() && input.size() > 1) input.pop_back();
  DecodingLimits limits;
  limits.max_input_tokens = static_cast<uint32_t>(input.size());
  absl::StatusOr<DecodingOptions> options =
      ResolveDecoding(decode.options, {}, config, limits, input);
  if (!options.ok()) return options.status();
  options->return_scores = options->num_beams > 1;
  Pending pending{.where = "",
                  .golden = decode.rows[row],
                  .prompt = options->prompt,
                  .filler = options->eos_token_ids.empty() ? -1 : options->eos_token_ids[0],
                  .sink = std::make_shared<ResultCollector>()};
  Request request;
  request.input = std::move(input);
  request.decoding = *std::move(options);
  request.sink = pending.sink;
  absl::StatusOr<RequestId> id = engine->Submit(std::move(request));
  if (!id.ok()) return id.status();
  return pending;
}

// Returns the sequences of `result` in the form of the output tensor of Hugging Face's generate():
// prompt and new tokens, padded to equal length with the first EOS id.
TokenRows AsTensor(const Result& result, const Pending& pending) {
  TokenRows rows;
  size_t longest = 0;
  for (const GeneratedSequence& sequence : result.sequences) {
    rows.push_back(pending.prompt);
    rows.back().insert(rows.back().end(), sequence.token_ids.begin(), sequence.token_ids.end());
    longest = std::max(longest, rows.back().size());
  }
  for (auto& row : rows) row.resize(longest, pending.filler);
  return rows;
}

void Judge(const Pending& pending, DecodeResult* out) {
  const auto& done = pending.sink->result();
  if (!done.has_value()) {
    out->failures.push_back(absl::StrCat(pending.where, " never ended"));
    return;
  }
  if (!done->ok()) {
    out->failures.push_back(absl::StrCat(pending.where, " ", done->status().ToString()));
    return;
  }
  const TokenRows got = AsTensor(**done, pending);
  const TokenRows& want = pending.golden.sequences;
  double score_error = 0;
  bool scores_agree = true;
  for (size_t i = 0; i < pending.golden.scores.size() && i < got.size(); ++i) {
    const GeneratedSequence& sequence = (*done)->sequences[i];
    const double error = std::abs(sequence.score - pending.golden.scores[i]);
    score_error = std::isnan(error) ? INFINITY : std::max(score_error, error);
    scores_agree = scores_agree && ScoresEqual(sequence.score, pending.golden.scores[i]);
  }
  if (got == want && scores_agree) {
    ++out->equal;
    out->score_error = std::max(out->score_error, score_error);
  } else if (pending.golden.smallest_gap < kNearTie) {
    out->near_ties.push_back(pending.where);
  } else if (got == want) {
    out->failures.push_back(absl::StrCat(pending.where, " score differs by ", score_error));
  } else {
    size_t i = 0;
    while (i < got.size() && i < want.size() && got[i] == want[i]) ++i;
    const auto join = [i](const TokenRows& rows) {
      return i < rows.size() ? absl::StrJoin(rows[i], " ") : "nothing";
    };
    out->failures.push_back(absl::StrCat(pending.where, " sequence ", i, ": expected ", join(want),
                                         "; got ", join(got)));
  }
}

}  // namespace

absl::StatusOr<DecodeResult> CheckDecodes(const GoldenCase& c, Model* model) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = MakeEngine(model);
  if (!engine.ok()) return engine.status();

  std::vector<GoldenDecode> decodes = c.decodes;
  if (!c.greedy.empty()) decodes.push_back(GreedyAsDecode(c));
  std::vector<Pending> pending;
  for (size_t d = 0; d < decodes.size(); ++d) {
    for (size_t row = 0; row < c.inputs.size(); ++row) {
      absl::StatusOr<Pending> p = SubmitRow(c, decodes[d], row, model->config(), engine->get());
      if (!p.ok()) return p.status();
      p->where = d < c.decodes.size() ? absl::StrCat("(", d, ",", row, ")")
                                      : absl::StrCat("(greedy,", row, ")");
      pending.push_back(*std::move(p));
    }
  }
  while ((*engine)->Step()) {
  }
  DecodeResult result;
  for (const Pending& p : pending) Judge(p, &result);
  return result;
}

}  // namespace quintet
