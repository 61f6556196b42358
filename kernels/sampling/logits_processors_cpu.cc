#include <algorithm>
#include <limits>
#include <span>

#include "kernels/cpu_ops.h"

namespace quintet::cpu {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

int64_t SeenWords(int64_t vocab) { return (vocab + 63) / 64; }

// Applies the rules of one row of logits.
class RuledRow {
 public:
  RuledRow(const LogitsProcessorsArgs& args, const RowRules& rules)
      : args_(args),
        rules_(rules),
        row_(args.logits.as<float>() + rules.row * args.logits.stride[0]),
        vocab_(args.logits.dim[1]),
        length_(args.history.lens[static_cast<size_t>(rules.sequence)]),
        slots_(args.history.slots + rules.sequence * args.history.slots_stride) {}

  void Apply(uint64_t* seen) const {
    if (rules_.keep != 0) {
      std::copy_n(row_, vocab_,
                  args_.raw_logits.as<float>() + rules_.row * args_.raw_logits.stride[0]);
    }
    if (!rules_.forced.empty()) {
      std::fill_n(row_, vocab_, kMinusInf);
      for (const int32_t token : TokensIn(rules_.forced)) row_[token] = 0.0f;
    } else {
      if (rules_.log_softmax != 0) {
        const float sum = args_.log_sums.as<float>()[rules_.row];
        for (int64_t i = 0; i < vocab_; ++i) row_[i] -= sum;
      }
      if (rules_.repetition_penalty != 1.0f) Penalize(seen);
      if (rules_.ngram > 0) BanRepeatedNgrams();
      BanWords();
    }
    for (const int32_t token : TokensIn(rules_.banned)) row_[token] = kMinusInf;
  }

 private:
  std::span<const int32_t> TokensIn(const TokenRange& range) const {
    return args_.tokens.subspan(static_cast<size_t>(range.begin),
                                static_cast<size_t>(range.end - range.begin));
  }
  int32_t Token(int64_t i) const { return args_.history.tokens.as<int32_t>()[slots_[i]]; }

  // `seen` is a bitmap of the vocabulary, so that a repeated token is penalized once.
  void Penalize(uint64_t* seen) const {
    std::fill_n(seen, SeenWords(vocab_), uint64_t{0});
    const float penalty = rules_.repetition_penalty;
    for (int64_t i = 0; i < length_; ++i) {
      const int32_t token = Token(i);
      const uint64_t bit = uint64_t{1} << (token % 64);
      if ((seen[token / 64] & bit) != 0) continue;
      seen[token / 64] |= bit;
      const float x = row_[token];
      row_[token] = x < 0.0f ? x * penalty : x / penalty;
    }
  }

  void BanRepeatedNgrams() const {
    const int64_t n = rules_.ngram, suffix = length_ + 1 - n;
    for (int64_t i = 0; i + n <= length_; ++i) {
      int64_t same = 0;
      while (same < n - 1 && Token(i + same) == Token(suffix + same)) ++same;
      if (same == n - 1) row_[Token(i + n - 1)] = kMinusInf;
    }
  }

  void BanWords() const {
    const std::span<const int32_t> words = TokensIn(rules_.words);
    const int32_t* base = args_.tokens.data() + rules_.words.begin;
    for (size_t w = 0; w + 1 < words.size(); w += 2) {
      const int32_t* word = base + words[w];
      const int64_t before = words[w + 1] - words[w] - 1;
      if (before > length_) continue;
      int64_t same = 0;
      while (same < before && Token(length_ - before + same) == word[same]) ++same;
      if (same == before) row_[word[before]] = kMinusInf;
    }
  }

  const LogitsProcessorsArgs& args_;
  const RowRules& rules_;
  float* row_;
  int64_t vocab_, length_;
  const int32_t* slots_;
};

}  // namespace

void ApplyLogitsProcessors(const LogitsProcessorsArgs& args, ThreadPool& pool) {
  const int64_t words = SeenWords(args.logits.dim[1]);
  pool.ParallelFor(static_cast<int64_t>(args.rules.size()), [&](int64_t task, int thread) {
    RuledRow(args, args.rules[static_cast<size_t>(task)])
        .Apply(args.scratch.as<uint64_t>() + thread * words);
  });
}

int64_t LogitsProcessorsScratchBytes(int64_t vocab, const ThreadPool& pool) {
  return pool.threads() * SeenWords(vocab) * 8;
}

}  // namespace quintet::cpu
