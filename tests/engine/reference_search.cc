#include "tests/engine/reference_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace quintet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Running {
  std::vector<int32_t> ids;  // prompt included
  float score;
};

struct Candidate {
  std::vector<int32_t> ids;
  float score;
  bool hit;
};

struct Finished {
  std::vector<int32_t> ids;
  float score = -1e9f;
  bool flag = false;
  bool dead = false;  // continues an ended or dead beam
};

bool Contains(const std::vector<int32_t>& list, int32_t x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

}  // namespace

std::vector<float> ReferenceLogSoftmax(std::vector<float> row) {
  double sum = 0.0;
  for (float x : row) sum += std::exp(static_cast<double>(x));
  const float log_sum = static_cast<float>(std::log(sum));
  for (float& x : row) x -= log_sum;
  return row;
}

std::vector<float> ReferenceProcess(const DecodingOptions& o, const std::vector<int32_t>& history,
                                    std::vector<float> row) {
  const int64_t length = history.size(), prompt = o.prompt.size();
  const int64_t longest = prompt + o.max_new_tokens;
  if (o.repetition_penalty != 1.0f) {
    for (int32_t t : std::set<int32_t>(history.begin(), history.end())) {
      row[t] = row[t] < 0 ? row[t] * o.repetition_penalty : row[t] / o.repetition_penalty;
    }
  }
  const int64_t n = o.no_repeat_ngram_size;
  for (int64_t v = 0; n > 0 && v < static_cast<int64_t>(row.size()); ++v) {
    std::vector<int32_t> extended = history;
    extended.push_back(static_cast<int32_t>(v));
    if (static_cast<int64_t>(extended.size()) < n) continue;
    for (int64_t i = 0; i + n < static_cast<int64_t>(extended.size()); ++i) {
      if (std::equal(extended.begin() + i, extended.begin() + i + n, extended.end() - n)) {
        row[v] = -kInf;
      }
    }
  }
  for (const auto& word : o.bad_words_ids) {
    if (word.size() == 1 && Contains(o.eos_token_ids, word[0])) continue;
    std::vector<int32_t> extended = history;
    extended.push_back(word.back());
    if (extended.size() >= word.size() &&
        std::equal(word.begin(), word.end(), extended.end() - word.size())) {
      row[word.back()] = -kInf;
    }
  }
  if (length - prompt < o.min_new_tokens) {
    for (int32_t t : o.eos_token_ids) row[t] = -kInf;
  }
  if (o.forced_bos_token_id >= 0 && length == 1) {
    row.assign(row.size(), -kInf);
    row[o.forced_bos_token_id] = 0;
  }
  if (!o.forced_eos_token_ids.empty() && length == longest - 1) {
    row.assign(row.size(), -kInf);
    for (int32_t t : o.forced_eos_token_ids) row[t] = 0;
  }
  for (int32_t t : o.suppress_tokens) row[t] = -kInf;
  const int64_t begin = prompt == 1 && o.forced_bos_token_id >= 0 ? 2 : prompt;
  if (length == begin) {
    for (int32_t t : o.begin_suppress_tokens) row[t] = -kInf;
  }
  return row;
}

std::vector<int32_t> ReferenceGreedy(const DecodingOptions& o, const LogitsFunction& logits) {
  std::vector<int32_t> history = o.prompt;
  while (history.size() < o.prompt.size() + o.max_new_tokens) {
    const std::vector<float> row = ReferenceProcess(o, history, logits(history));
    history.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    if (Contains(o.eos_token_ids, history.back())) break;
  }
  return {history.begin() + o.prompt.size(), history.end()};
}

std::vector<ReferenceSequence> ReferenceBeams(const DecodingOptions& o,
                                              const LogitsFunction& logits) {
  const size_t beams = o.num_beams, prompt = o.prompt.size();
  const size_t keep = std::max<size_t>(2, 1 + o.eos_token_ids.size()) * beams;
  const size_t pool = std::max<size_t>(1, std::lround(beams * o.patience));
  std::vector<Running> running(beams, {o.prompt, -1e9f});
  running[0].score = 0;
  std::vector<Finished> finished(pool, {o.prompt});
  bool open = true;
  for (size_t length = prompt;; ++length) {
    std::vector<Candidate> all;
    for (const Running& beam : running) {
      const std::vector<float> row =
          ReferenceProcess(o, beam.ids, ReferenceLogSoftmax(logits(beam.ids)));
      for (size_t v = 0; v < row.size(); ++v) {
        Candidate c{beam.ids, row[v] + beam.score, false};
        c.ids.push_back(static_cast<int32_t>(v));
        c.hit =
            Contains(o.eos_token_ids, c.ids.back()) || c.ids.size() >= prompt + o.max_new_tokens;
        all.push_back(std::move(c));
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    if (all.size() > keep) all.resize(keep);

    const bool full = std::all_of(finished.begin(), finished.end(), [](auto& f) { return f.flag; });
    const float penalty =
        static_cast<float>(std::pow(static_cast<double>(length + 1 - prompt), o.length_penalty));
    std::vector<Finished> merged = finished;
    for (size_t k = 0; k < all.size(); ++k) {
      const bool just = all[k].hit && k < beams;
      float score = all[k].score / penalty;
      if (full && o.early_stopping == EarlyStopping::kFirst) score += -1e9f;
      if (!open) score += -1e9f;
      if (!just) score += -1e9f;
      merged.push_back({all[k].ids, score, just, !(all[k].score > -1e9f)});
    }
    std::stable_sort(merged.begin(), merged.end(),
                     [](const Finished& a, const Finished& b) { return a.score > b.score; });
    finished.assign(merged.begin(), merged.begin() + pool);

    bool all_hit = true;
    std::vector<Running> next;
    for (Candidate& c : all) {
      all_hit = all_hit && c.hit;
      next.push_back({c.ids, c.hit ? c.score + -1e9f : c.score});
    }
    std::stable_sort(next.begin(), next.end(),
                     [](const Running& a, const Running& b) { return a.score > b.score; });
    running.assign(next.begin(), next.begin() + beams);

    const bool never = o.early_stopping == EarlyStopping::kNever && o.length_penalty > 0;
    const double best_length = never ? o.max_new_tokens : static_cast<double>(length + 1 - prompt);
    const float best =
        running[0].score / static_cast<float>(std::pow(best_length, o.length_penalty));
    float worst = kInf;
    for (const Finished& f : finished) worst = std::min(worst, f.score);
    bool improvable = false;
    for (const Finished& f : finished) improvable = improvable || best > (f.flag ? worst : -1e9f);
    open = open && improvable;
    const bool now_full =
        std::all_of(finished.begin(), finished.end(), [](auto& f) { return f.flag; });
    if (!open || all_hit || (now_full && o.early_stopping == EarlyStopping::kFirst)) break;
  }
  std::vector<ReferenceSequence> result;
  const bool any =
      std::any_of(finished.begin(), finished.end(), [](auto& f) { return f.flag && !f.dead; });
  for (const Finished& f : finished) {
    if (f.dead && (any || !result.empty())) continue;
    if (!f.flag || static_cast<int32_t>(result.size()) == o.num_return_sequences) continue;
    result.push_back({{f.ids.begin() + prompt, f.ids.end()}, f.score});
  }
  return result;
}

}  // namespace quintet
