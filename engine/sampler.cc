#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/check.h"

namespace quintet {
namespace {

bool Better(const Weighted& a, const Weighted& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

}  // namespace

std::array<uint32_t, 4> Philox(uint64_t key, const std::array<uint32_t, 4>& counter) {
  std::array<uint32_t, 4> c = counter;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

double OpenUnit(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 12;  // 52 bits, then the middle of the cell
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

WarpOptions WarpOptionsOf(const DecodingOptions& options) {
  WarpOptions warp;
  warp.temperature = options.temperature;
  warp.top_k = options.top_k;
  warp.top_p = options.top_p;
  warp.min_p = options.min_p;
  warp.typical_p = options.typical_p;
  // Beam search must keep a token that goes on besides every eos.
  const int32_t eos = static_cast<int32_t>(options.eos_token_ids.size());
  warp.keep = options.num_beams > 1 ? std::max(2, eos + 1) : 1;
  return warp;
}

absl::Span<const Weighted> Warper::Warp(absl::Span<const float> row, const WarpOptions& options) {
  const size_t keep = static_cast<size_t>(options.keep);
  Divide(row, options.temperature);
  if (options.top_k > 0) KeepTopK(std::max(static_cast<size_t>(options.top_k), keep));
  if (options.top_p < 1.0f) KeepTopP(options.top_p, keep);
  if (options.min_p > 0.0f) KeepMinP(options.min_p, keep);
  if (options.typical_p < 1.0f) KeepTypical(options.typical_p, keep);
  return kept_;
}

void Warper::Divide(absl::Span<const float> row, float temperature) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  kept_.clear();
  for (size_t token = 0; token < row.size(); ++token) {
    const float value = row[token] / temperature;
    if (value > kNever) kept_.push_back({static_cast<int32_t>(token), value});
  }
}

void Warper::KeepTopK(size_t k) {
  if (k >= kept_.size()) return;
  // The k-th largest from the maxima of groups: a bound first, so that the exact selection sees few
  // entries.
  std::nth_element(kept_.begin(), kept_.begin() + (k - 1), kept_.end(), Better);
  const float threshold = kept_[k - 1].value;
  // Ties with the k-th survive.
  const auto end = std::partition(kept_.begin() + k, kept_.end(),
                                  [threshold](const Weighted& w) { return w.value >= threshold; });
  kept_.erase(end, kept_.end());
  std::sort(kept_.begin(), kept_.end(), Better);
}

double Warper::Weigh() {
  float maximum = -std::numeric_limits<float>::infinity();
  for (const Weighted& w : kept_) maximum = std::max(maximum, w.value);
  weights_.resize(kept_.size());
  double sum = 0.0;
  for (size_t i = 0; i < kept_.size(); ++i) {
    weights_[i] = std::exp(kept_[i].value - maximum);
    sum += weights_[i];
  }
  return sum;
}

void Warper::KeepTopP(float p, size_t keep) {
  // Hugging Face removes, from the least likely up, while the cumulative probability is <= 1 - p;
  // seen from the other end: a token stays while less than p lies above it. From this end only the
  // head needs sorting.
  const double total = Weigh();
  const double wanted = static_cast<double>(p) * total;
  float maximum = -std::numeric_limits<float>::infinity();
  for (const Weighted& w : kept_) maximum = std::max(maximum, w.value);
  double above = 0.0;
  size_t sorted = 0, stay = 0;
  while (stay < kept_.size() && (stay < keep || above < wanted)) {
    if (stay == sorted) {
      sorted = std::min(kept_.size(), std::max<size_t>(64, sorted * 4));
      std::partial_sort(kept_.begin() + stay, kept_.begin() + sorted, kept_.end(), Better);
    }
    above += std::exp(kept_[stay].value - maximum);
    ++stay;
  }
  kept_.resize(stay);
}

void Warper::KeepMinP(float p, size_t keep) {
  const double total = Weigh();
  const float best = static_cast<float>(1.0 / total);  // probability of the maximum
  const float bound = p * best;
  if (keep > 1) {  // the `keep` best come first, and stay
    const size_t head = std::min(keep, kept_.size());
    std::partial_sort(kept_.begin(), kept_.begin() + head, kept_.end(), Better);
    Weigh();
  }
  size_t stay = 0;
  for (size_t i = 0; i < kept_.size(); ++i) {
    const float probability = static_cast<float>(weights_[i] / total);
    if (probability >= bound || (keep > 1 && i < keep)) kept_[stay++] = kept_[i];
  }
  kept_.resize(stay);
}

void Warper::KeepTypical(float mass, size_t keep) {
  const double total = Weigh();
  const double log_total = std::log(total);
  float maximum = -std::numeric_limits<float>::infinity();
  for (const Weighted& w : kept_) maximum = std::max(maximum, w.value);
  double entropy = 0.0;
  for (const Weighted& w : kept_) {
    const double log_p = w.value - maximum - log_total;
    entropy -= log_p * std::exp(log_p);
  }
  // |surprise - entropy|, ascending; then the shortest head whose mass reaches the threshold, with
  // its ties.
  std::vector<float>& distance = weights_;
  for (size_t i = 0; i < kept_.size(); ++i) {
    const double log_p = kept_[i].value - maximum - log_total;
    distance[i] = static_cast<float>(std::fabs(-log_p - entropy));
  }
  order_.resize(kept_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(), [this, &distance](uint32_t a, uint32_t b) {
    return distance[a] < distance[b] ||
           (distance[a] == distance[b] && kept_[a].token < kept_[b].token);
  });
  size_t last = 0;
  double cumulative = 0.0;
  for (; last + 1 < order_.size(); ++last) {
    cumulative += std::exp(kept_[order_[last]].value - maximum) / total;
    if (cumulative >= mass) break;
  }
  const float bound = distance[order_[last]];
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i >= keep && distance[order_[i]] > bound) {
      kept_[order_[i]].value = -std::numeric_limits<float>::infinity();
    }
  }
  kept_.erase(std::remove_if(kept_.begin(), kept_.end(),
                             [](const Weighted& w) { return !std::isfinite(w.value); }),
              kept_.end());
}

int32_t DrawToken(absl::Span<const Weighted> kept, const DrawPlace& place) {
  QT_CHECK(!kept.empty());
  float maximum = kept[0].value;
  for (const Weighted& w : kept) maximum = std::max(maximum, w.value);
  double total = 0.0;
  for (const Weighted& w : kept) total += std::exp(w.value - maximum);
  const auto bits = Philox(place.seed, {place.position, place.sequence, 0u, 0u});
  double left = OpenUnit(bits[0], bits[1]) * total;
  for (const Weighted& w : kept) {
    left -= std::exp(w.value - maximum);
    if (left < 0.0) return w.token;
  }
  return kept.back().token;  // rounding of the last term
}

double DrawKey(float value, const DrawPlace& place, uint32_t flat) {
  // Two elements share a block of four words; the last counter word keeps these draws apart from
  // DrawToken's.
  const auto bits = Philox(place.seed, {place.position, place.sequence, flat / 2, 1u});
  const size_t half = flat % 2 * 2;
  return static_cast<double>(value) - std::log(-std::log(OpenUnit(bits[half], bits[half + 1])));
}

}  // namespace quintet
