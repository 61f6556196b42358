#include "kernels/sampling/warper.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "kernels/base/check.h"

namespace quintet {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

bool Better(const WarpedToken& a, const WarpedToken& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

}  // namespace

int64_t Warper::ScratchBytes(int64_t vocab) {
  const int64_t bytes = vocab * static_cast<int64_t>(sizeof(WarpedToken) + sizeof(float) + 4);
  return (bytes + 63) / 64 * 64;
}

Warper::Warper(void* scratch, int64_t vocab)
    : vocab_(static_cast<size_t>(vocab)),
      kept_(static_cast<WarpedToken*>(scratch)),
      weights_(reinterpret_cast<float*>(kept_ + vocab)),
      order_(reinterpret_cast<uint32_t*>(weights_ + vocab)) {}

std::span<const WarpedToken> Warper::Warp(std::span<const float> row, const WarpOptions& options) {
  QT_CHECK_EQ(row.size(), vocab_);
  const size_t keep = static_cast<size_t>(options.keep);
  Divide(row, options.temperature);
  if (options.top_k > 0) KeepTopK(std::max(static_cast<size_t>(options.top_k), keep));
  if (options.top_p < 1.0f) KeepTopP(options.top_p, keep);
  if (options.min_p > 0.0f) KeepMinP(options.min_p, keep);
  if (options.typical_p < 1.0f) KeepTypical(options.typical_p, keep);
  return {kept_, size_};
}

void Warper::Divide(std::span<const float> row, float temperature) {
  size_ = 0;
  for (size_t token = 0; token < row.size(); ++token) {
    const float value = row[token] / temperature;
    if (value > kMinusInf) kept_[size_++] = {static_cast<int32_t>(token), value};
  }
}

void Warper::KeepTopK(size_t k) {
  WarpedToken* end = kept_ + size_;
  if (k < size_) {
    std::nth_element(kept_, kept_ + (k - 1), end, Better);
    const float threshold = kept_[k - 1].value;
    // As in Hugging Face, top-k also keeps all tokens whose value equals the k-th best value.
    end = std::partition(kept_ + k, end,
                         [threshold](const WarpedToken& w) { return w.value >= threshold; });
  }
  std::sort(kept_, end, Better);
  size_ = static_cast<size_t>(end - kept_);
}

float Warper::Maximum() const {
  float maximum = kMinusInf;
  for (size_t i = 0; i < size_; ++i) maximum = std::max(maximum, kept_[i].value);
  return maximum;
}

double Warper::ComputeWeights() {
  const float maximum = Maximum();
  double sum = 0.0;
  for (size_t i = 0; i < size_; ++i) {
    weights_[i] = std::exp(kept_[i].value - maximum);
    sum += weights_[i];
  }
  return sum;
}

void Warper::KeepTopP(float p, size_t keep) {
  // Hugging Face sorts tokens by ascending probability and removes tokens while their cumulative
  // probability is <= 1 - p. Equivalently, a token is kept if the total probability of all better
  // tokens is less than p. In this form it suffices to sort the best tokens.
  const double wanted = static_cast<double>(p) * ComputeWeights();
  const float maximum = Maximum();
  double above = 0.0;
  size_t sorted = 0, kept = 0;
  while (kept < size_ && (kept < keep || above < wanted)) {
    if (kept == sorted) {
      sorted = std::min(size_, std::max<size_t>(64, sorted * 4));
      std::partial_sort(kept_ + kept, kept_ + sorted, kept_ + size_, Better);
    }
    above += std::exp(kept_[kept].value - maximum);
    ++kept;
  }
  size_ = kept;
}

void Warper::KeepMinP(float p, size_t keep) {
  const double total = ComputeWeights();
  const float best = static_cast<float>(1.0 / total);  // probability of the maximum
  const float bound = p * best;
  if (keep > 1) {  // move the `keep` best tokens to the front; they survive
    const size_t head = std::min(keep, size_);
    std::partial_sort(kept_, kept_ + head, kept_ + size_, Better);
    ComputeWeights();
  }
  size_t kept = 0;
  for (size_t i = 0; i < size_; ++i) {
    const float probability = static_cast<float>(weights_[i] / total);
    if (probability >= bound || (keep > 1 && i < keep)) kept_[kept++] = kept_[i];
  }
  size_ = kept;
}

void Warper::KeepTypical(float mass, size_t keep) {
  if (size_ == 0) return;
  const double total = ComputeWeights();
  const double log_total = std::log(total);
  const float maximum = Maximum();
  double entropy = 0.0;
  for (size_t i = 0; i < size_; ++i) {
    const double log_p = kept_[i].value - maximum - log_total;
    entropy -= log_p * std::exp(log_p);
  }
  // Sort by |surprise - entropy| ascending, where the surprise of a token is -log(probability).
  // Keep the shortest prefix whose total probability is >= `mass`, and tokens that tie with the
  // last token of this prefix.
  float* const distance = weights_;
  for (size_t i = 0; i < size_; ++i) {
    const double log_p = kept_[i].value - maximum - log_total;
    distance[i] = static_cast<float>(std::fabs(-log_p - entropy));
  }
  std::iota(order_, order_ + size_, 0u);
  std::sort(order_, order_ + size_, [this, distance](uint32_t a, uint32_t b) {
    return distance[a] < distance[b] ||
           (distance[a] == distance[b] && kept_[a].token < kept_[b].token);
  });
  size_t last = 0;
  double cumulative = 0.0;
  for (; last + 1 < size_; ++last) {
    cumulative += std::exp(kept_[order_[last]].value - maximum) / total;
    if (cumulative >= mass) break;
  }
  const float bound = distance[order_[last]];
  for (size_t i = 0; i < size_; ++i) {
    if (i >= keep && distance[order_[i]] > bound) kept_[order_[i]].value = kMinusInf;
  }
  const auto removed = [](const WarpedToken& w) { return !std::isfinite(w.value); };
  size_ = static_cast<size_t>(std::remove_if(kept_, kept_ + size_, removed) - kept_);
}

int32_t DrawToken(std::span<const WarpedToken> kept, const DrawId& draw_id) {
  QT_CHECK(!kept.empty());
  float maximum = kept[0].value;
  for (const WarpedToken& w : kept) maximum = std::max(maximum, w.value);
  double total = 0.0;
  for (const WarpedToken& w : kept) total += std::exp(w.value - maximum);
  double left = UniformAt(draw_id) * total;
  for (const WarpedToken& w : kept) {
    left -= std::exp(w.value - maximum);
    if (left < 0.0) return w.token;
  }
  return kept.back().token;  // reached only by rounding
}

}  // namespace quintet
