// The logits warpers (sampling.h) for one row on a GPU, by one thread block. CPU version: warper.h.
//
// Each filter and the final draw reduce to one problem: given an order of the values, find the
// value at which the running sum of weights exceeds a target. Weights are integers (exp(value -
// max) in units of 2^-40), so sums do not depend on the order in which threads add them.
//
// If the top_k values fit in shared memory (top_k up to 512 and few ties), they are gathered there
// once and all later steps use only this list. Otherwise each step reads the row again: it adds up
// the weights in 2048 buckets and sorts only the bucket in which the sum exceeds the target.
#pragma once

#include "kernels/sampling/sampling.h"
#include "kernels/sampling/selection.cuh"

namespace quintet::cuda::warping {

inline constexpr unsigned kWholeWarp = 0xffffffffu;
inline constexpr int kThreads = 1024, kWarps = kThreads / 32;  // per block
inline constexpr int kMaxItems = 2 * kThreads;  // capacity of a sort in shared memory
inline constexpr int kBuckets = 2 * kThreads;
inline constexpr int kMaxListedK = 512;  // largest top_k that is gathered into shared memory

// A token's weight exp(value - max), or a sum of such weights: an integer in units of 2^-40.
using Mass = unsigned long long;
inline constexpr float kMassUnit = 0x1p40f;

// Shared memory of one block.
struct WarperShared {
  uint64_t items[kMaxItems];  // values and tokens, as RankByValue
  union {
    struct {
      Mass mass[kBuckets];
      int count[kBuckets];
    } histogram;
    uint64_t keys[kMaxItems];
    struct {
      uint64_t key[kMaxItems];
      int id[kMaxItems];
    } best;  // buffer of BestKeys (beam_sampling.cu)
  };
  Mass scan[kWarps + 1];      // BlockScan: sum of all lower warps; last entry: total
  double sums[kWarps];        // BlockSum: sum of each warp
  unsigned warp_max[kWarps];  // FindMax: greatest key of each warp
  int count;                  // number of entries in `items` or `best`
  // Results of FindBucket: found, bucket, bucket_count (number of values in the bucket) and above
  // (sum of weights before the bucket). Results of FindCrossing: found and item (a RankByValue).
  bool found;
  int bucket, bucket_count;
  uint64_t item, key;
  Mass above;
};

__device__ __forceinline__ int Thread() { return static_cast<int>(threadIdx.x); }

// Packs a value and a token id into one integer, the rank. Greater values have lower ranks; of
// equal values the lower token id has the lower rank.
__device__ __forceinline__ uint64_t RankByValue(float value, int token) {
  return static_cast<uint64_t>(~KeyOf(value)) << 32 | static_cast<unsigned>(token);
}
__device__ __forceinline__ float ValueOfRank(uint64_t rank) {
  return ValueOf(~static_cast<unsigned>(rank >> 32));
}
__device__ __forceinline__ int TokenOfRank(uint64_t rank) {
  return static_cast<int>(static_cast<unsigned>(rank));
}

// Exclusive prefix sum of `own` over the threads of the block; *total receives the sum of all.
__device__ inline Mass BlockScan(Mass own, WarperShared& s, Mass* total) {
  const int lane = Thread() % 32, warp = Thread() / 32;
  const auto warp_scan = [lane](Mass x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const Mass before = __shfl_up_sync(kWholeWarp, x, step);
      if (lane >= step) x += before;
    }
    return x;
  };
  const Mass inclusive = warp_scan(own);
  if (lane == 31) s.scan[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    const Mass sum = s.scan[lane], upto = warp_scan(sum);
    s.scan[lane] = upto - sum;
    if (lane == 31) s.scan[kWarps] = upto;
  }
  __syncthreads();
  const Mass before = s.scan[warp] + inclusive - own;
  *total = s.scan[kWarps];
  __syncthreads();
  return before;
}

// Returns the sum of x over the block to all threads. The order of summation is fixed.
__device__ inline double BlockSum(double x, WarperShared& s) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
  if (Thread() % 32 == 0) s.sums[Thread() / 32] = x;
  __syncthreads();
  double sum = 0.0;
  for (int warp = 0; warp < kWarps; ++warp) sum += s.sums[warp];
  __syncthreads();
  return sum;
}

// Bitonic sort of `size` entries (a power of two up to kMaxItems) by the whole block. The function
// exchange(i, j, ascending) must sort entries i and j, in descending order if `ascending` is false.
template <typename Exchange>
__device__ void SortBy(int size, const Exchange& exchange) {
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      if (Thread() < size / 2) {
        const int low = 2 * Thread() - Thread() % step;
        exchange(low, low + step, (low & run) == 0);
      }
      __syncthreads();
    }
  }
}

// Returns the smallest power of two that is at least n and at least 2.
__device__ __forceinline__ int SortingSize(int n) {
  int size = 2;
  while (size < n) size *= 2;
  return size;
}

// Sorts keys [n] in ascending order, n <= kMaxItems. Overwrites the entries after n up to the next
// power of two with padding.
__device__ inline void Sort(uint64_t* keys, int n) {
  const int size = SortingSize(n);
  for (int i = n + Thread(); i < size; i += kThreads) keys[i] = ~uint64_t{0};
  SortBy(size, [keys](int low, int high, bool ascending) {
    const uint64_t a = keys[low], b = keys[high];
    if ((a > b) != ascending) return;
    keys[low] = b;
    keys[high] = a;
  });
}

// ByValue, ByToken and ByDistance are the orders in which weights are summed. Members of an order:
//   Linear   monotonic 32-bit key that spreads the values of a row over many buckets
//   Rank     unique 64-bit key: sorting by it gives the order, with all ties broken
//   Key      32-bit key of the order; equal keys are ties
//   kSorted  true if items sorted by value (WarperShared::items) are already in this order
//
// ByValue: value descending.
struct ByValue {
  static constexpr bool kSorted = true;
  float max;
  __device__ unsigned Linear(float value, int) const {
    return __float2uint_rz((max - value) * 0x1p27f);
  }
  __device__ uint64_t Rank(float value, int token) const { return RankByValue(value, token); }
  __device__ unsigned Key(float value, int) const { return ~KeyOf(value); }
};

// ByToken: token ascending.
struct ByToken {
  static constexpr bool kSorted = false;
  int vocab;
  __device__ unsigned Linear(float, int token) const {
    return static_cast<unsigned>(token) << __clz(vocab);
  }
  __device__ uint64_t Rank(float, int token) const { return static_cast<uint64_t>(token); }
  __device__ unsigned Key(float, int token) const { return static_cast<unsigned>(token); }
};

// Packs a distance (the bits of a non-negative float) and a token id into one integer, the rank.
// Smaller distances have lower ranks; of equal distances the lower token id has the lower rank.
__device__ __forceinline__ uint64_t RankByDistance(unsigned distance, int token) {
  return static_cast<uint64_t>(distance) << 32 | static_cast<unsigned>(token);
}

// ByDistance: |surprise - entropy| ascending, for typical_p; surprise: -log(probability).
struct ByDistance {
  static constexpr bool kSorted = false;
  float max;
  double log_total, entropy;
  __device__ float Distance(float value) const {
    const double log_p = static_cast<double>(value - max) - log_total;
    return static_cast<float>(fabs(-log_p - entropy));
  }
  __device__ unsigned Linear(float value, int) const {
    return __float2uint_rz(Distance(value) * 0x1p27f);
  }
  __device__ uint64_t Rank(float value, int token) const {
    return RankByDistance(Key(value, token), token);
  }
  __device__ unsigned Key(float value, int) const { return __float_as_uint(Distance(value)); }
};

// The first value, in the order of summation, at which the sum of weights exceeds the target.
struct Crossing {
  bool found;
  uint64_t item;  // RankByValue of the value
  unsigned key;   // Order::Key of the value
};

// Applies the warpers to one row. All threads of a block must call Warp, DrawToken, VisitTogether.
class RowWarper {
 public:
  // The arguments must outlive this object.
  __device__ RowWarper(const LogitRows& logits, int64_t row, const WarpOptions& warp,
                       WarperShared& s)
      : logits_(logits), row_(logits.x + row * logits.stride), warp_(warp), s_(s) {}

  // Applies the filters. Returns false if the row has no value that can be drawn.
  __device__ bool Warp() {
    if (!FindMax()) return false;
    if (warp_.top_k > 0) KeepTopK();
    if (warp_.top_p < 1.0f) KeepTopP();
    if (warp_.min_p > 0.0f) KeepMinP();
    if (warp_.typical_p < 1.0f) KeepTypical();
    return true;
  }

  // Call after Warp. Returns the token at which the running sum of the surviving tokens' weights
  // exceeds `unit`, a uniform random number in (0, 1), times the sum of all these weights.
  __device__ int DrawToken(double unit) {
    const auto target = [unit](Mass total) {
      return static_cast<Mass>(unit * static_cast<double>(total));
    };
    const auto mass = [this](float value) { return MassOf(value); };
    const bool by_value = warp_.top_k > 0 || warp_.top_p < 1.0f;
    const Crossing drawn = by_value ? FindCrossing(ByValue{max_}, mass, target)
                                    : FindCrossing(ByToken{logits_.vocab}, mass, target);
    return drawn.found ? TokenOfRank(drawn.item) : 0;
  }

  // Call after Warp. Calls visit(kept, value, token); `kept`: the filters kept the token. Every
  // thread calls visit the same number of times, so that visit may contain barriers.
  template <typename Visit>
  __device__ void VisitTogether(const Visit& visit) const {
    if (!listed_) {
      return ForEachOfRow<1>(
          [&](float value, int token) { visit(Kept(value, token), value, token); });
    }
    for (int base = 0; base < listed_items_; base += kThreads) {
      const bool valid = base + Thread() < listed_items_;
      const uint64_t rank = valid ? s_.items[base + Thread()] : 0;
      const float value = ValueOfRank(rank);
      visit(valid && Kept(value, TokenOfRank(rank)), value, TokenOfRank(rank));
    }
  }

  // Logit of the token divided by the temperature.
  __device__ float ScaledLogit(int token) const {
    return __fdiv_rn(row_[token], warp_.temperature);
  }

 private:
  // Calls visit(value, token) for every value of the row. All threads call visit the same number of
  // times: past the end of the row the value is -inf. A thread has kUnroll vector loads in flight.
  template <int kUnroll, typename Visit>
  __device__ void ForEachOfRow(const Visit& visit) const {
    const int vocab = logits_.vocab;
    for (int base = 4 * Thread(); base - 4 * Thread() < vocab; base += 4 * kThreads * kUnroll) {
      float values[kUnroll][4];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int at = base + 4 * kThreads * j;
        if (logits_.vectors && at + 4 <= vocab) {
          LoadVector(row_ + at, values[j]);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) values[j][i] = at + i < vocab ? row_[at + i] : kMinusInf;
        }
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          visit(__fdiv_rn(values[j][i], warp_.temperature), base + 4 * kThreads * j + i);
        }
      }
    }
  }
  // Calls visit(value, token) for every value that all filters applied so far have kept.
  template <typename Visit>
  __device__ void ForEachKept(const Visit& visit) const {
    const auto visit_kept = [&](float value, int token) {
      if (Kept(value, token)) visit(value, token);
    };
    if (!listed_) return ForEachOfRow<1>(visit_kept);
    for (int i = Thread(); i < listed_items_; i += kThreads) {
      visit_kept(ValueOfRank(s_.items[i]), TokenOfRank(s_.items[i]));
    }
  }

  __device__ float Weight(float value) const {
    const float below = value - max_;
    return expf(below == below ? below : 0.0f);  // inf - inf: all infinite values weigh the same
  }
  __device__ Mass MassOf(float value) const { return __float2ull_rn(Weight(value) * kMassUnit); }

  __device__ bool Kept(float value, int token) const {
    const uint64_t rank = RankByValue(value, token);
    if (rank > value_cut_) return false;
    if (min_p_total_ > 0.0 && rank > keep_cut_ &&
        static_cast<float>(static_cast<double>(Weight(value)) / min_p_total_) < min_p_bound_) {
      return false;
    }
    return !typical_ || distance_.Rank(value, token) <= distance_cut_;
  }

  // Sets the row's max_ and this thread's greatest key (KeyOf). False: all values are -inf or NaN.
  __device__ bool FindMax() {
    thread_max_key_ = 0;
    ForEachOfRow<4>(
        [this](float value, int) { thread_max_key_ = max(thread_max_key_, KeyOf(value)); });
    const unsigned warp_best = __reduce_max_sync(kWholeWarp, thread_max_key_);
    if (Thread() % 32 == 0) s_.warp_max[Thread() / 32] = warp_best;
    __syncthreads();
    const unsigned best = __reduce_max_sync(kWholeWarp, s_.warp_max[Thread() % 32]);
    const unsigned never = KeyOf(kMinusInf);
    max_ = ValueOf(best);
    value_cut_ = (static_cast<uint64_t>(~never) << 32) - 1;
    return best > never;
  }

  __device__ void KeepTopK() {
    const int k = max(warp_.top_k, warp_.keep);
    if (k <= kMaxListedK && GatherTopK(k)) {
      // As in Hugging Face, top-k also keeps all tokens whose value equals the k-th best value.
      if (listed_items_ > k) value_cut_ = s_.items[k - 1] | 0xffffffffu;
      return;
    }
    const Crossing last = KthBestKept(k);
    if (last.found) value_cut_ = last.item | 0xffffffffu;
  }

  // Returns the k-th best of the values that all filters applied so far have kept.
  __device__ Crossing KthBestKept(int k) {
    return FindCrossing(
        ByValue{max_}, [](float) { return Mass{1}; },
        [k](Mass) { return static_cast<Mass>(k - 1); });
  }

  // Gathers all values >= a bound into s_.items and sorts them. Returns false if they do not fit.
  // The bound is never above the k-th best value, so s_.items then contains the k best values.
  __device__ bool GatherTopK(int k) {
    unsigned bound = 0;
    for (unsigned bit = 1u << 31; bit != 0; bit >>= 1) {
      const int count = __syncthreads_count(thread_max_key_ >= (bound | bit));
      if (count < k) continue;
      bound |= bit;
      if (count <= k + k / 4) break;
    }
    if (Thread() == 0) s_.count = 0;
    __syncthreads();
    ForEachOfRow<4>([&](float value, int token) {
      if (KeyOf(value) >= bound) AddItem(value, token);
    });
    __syncthreads();
    if (s_.count > kMaxItems) return false;
    listed_ = true;
    listed_items_ = s_.count;
    Sort(s_.items, listed_items_);
    return true;
  }

  __device__ void AddItem(float value, int token) const {
    const uint64_t rank = RankByValue(value, token);
    if (rank > value_cut_ || *static_cast<volatile int*>(&s_.count) > kMaxItems) return;
    const int at = atomicAdd(&s_.count, 1);
    if (at < kMaxItems) s_.items[at] = rank;
  }

  // Keeps a token if the total probability of all better tokens is less than top_p.
  __device__ void KeepTopP() {
    const double p = warp_.top_p;
    const Crossing last = FindCrossing(
        ByValue{max_}, [this](float value) { return MassOf(value); },
        [p](Mass total) { return static_cast<Mass>(ceil(p * static_cast<double>(total))) - 1; });
    if (!last.found) return;
    uint64_t cut = last.item;
    if (warp_.keep > 1) {
      const Crossing kept = KthBestKept(warp_.keep);
      cut = kept.found ? max(cut, kept.item) : value_cut_;
    }
    value_cut_ = cut;
  }

  __device__ void KeepMinP() {
    const double total = static_cast<double>(TotalMass()) / static_cast<double>(kMassUnit);
    if (warp_.keep > 1) {
      const Crossing kept = KthBestKept(warp_.keep);
      keep_cut_ = kept.found ? kept.item : value_cut_;
    }
    min_p_bound_ = __fmul_rn(warp_.min_p, static_cast<float>(1.0 / total));
    min_p_total_ = total;
  }

  // Typical sampling: by ascending |surprise - entropy| (surprise: -log(probability)), keeps the
  // fewest tokens whose total probability is >= typical_p, and tokens that tie with the last one.
  __device__ void KeepTypical() {
    const Mass total = TotalMass();
    ByDistance distance{max_, log(static_cast<double>(total) / static_cast<double>(kMassUnit)),
                        0.0};
    double own = 0.0;
    ForEachKept([&](float value, int) {
      const double log_p = static_cast<double>(value - max_) - distance.log_total;
      own -= log_p * exp(log_p);
    });
    distance.entropy = BlockSum(own, s_);
    const double mass = warp_.typical_p;
    const Crossing last = FindCrossing(
        distance, [this](float value) { return MassOf(value); },
        [mass](Mass all) { return static_cast<Mass>(ceil(mass * static_cast<double>(all))) - 1; });
    if (!last.found) return;
    uint64_t cut = RankByDistance(last.key, -1);  // the last rank with this key
    if (warp_.keep > 1) {
      const int keep = warp_.keep;
      const Crossing kept = FindCrossing(
          distance, [](float) { return Mass{1}; },
          [keep](Mass) { return static_cast<Mass>(keep - 1); });
      if (!kept.found) return;
      cut = max(cut, RankByDistance(kept.key, TokenOfRank(kept.item)));
    }
    distance_ = distance;
    distance_cut_ = cut;
    typical_ = true;
  }

  __device__ Mass TotalMass() const {
    Mass own = 0, total = 0;
    ForEachKept([&](float value, int) { own += MassOf(value); });
    BlockScan(own, s_, &total);
    return total;
  }

  // Adds up weigh(value) over the values that all filters so far have kept, in the given order, and
  // returns the first value at which the sum exceeds target_of(total); none: `found` is false.
  template <typename Order, typename Weigh, typename TargetOf>
  __device__ Crossing FindCrossing(const Order& order, const Weigh& weigh,
                                   const TargetOf& target_of) {
    Mass above = 0, target = 0;
    int n = listed_items_;
    if (!listed_) {
      if (!SelectBucket(order, weigh, target_of, &above, &target)) return {};
      n = s_.count;
      Sort(s_.items, n);
    }
    if (!Order::kSorted) {
      for (int i = Thread(); i < n; i += kThreads) {
        const uint64_t item = s_.items[i];
        s_.keys[i] = static_cast<uint64_t>(order.Key(ValueOfRank(item), TokenOfRank(item))) << 32 |
                     static_cast<unsigned>(i);
      }
      __syncthreads();
      Sort(s_.keys, n);
    }
    // Each thread handles two items that are consecutive in `order`.
    uint64_t items[2] = {};
    Mass weights[2] = {}, total = 0;
    for (int j = 0; j < 2; ++j) {
      const int at = 2 * Thread() + j;
      if (at >= n) continue;
      items[j] = s_.items[Order::kSorted ? at : static_cast<unsigned>(s_.keys[at])];
      const float value = ValueOfRank(items[j]);
      weights[j] = Kept(value, TokenOfRank(items[j])) ? weigh(value) : 0;
    }
    if (Thread() == 0) s_.found = false;
    above += BlockScan(weights[0] + weights[1], s_, &total);
    if (listed_) target = target_of(total);
    for (int j = 0; j < 2; ++j) {
      if (above <= target && target < above + weights[j]) {
        s_.found = true;
        s_.item = items[j];
      }
      above += weights[j];
    }
    __syncthreads();
    const Crossing result{s_.found, s_.item, order.Key(ValueOfRank(s_.item), TokenOfRank(s_.item))};
    __syncthreads();
    return result;
  }

  // Used if s_.items does not contain all kept values (!listed_). Stores in s_.items a range of
  // values, consecutive in `order`, in which the running sum of weights exceeds the target. *above
  // receives the sum of the weights before this range. Radix selection: each pass puts the values
  // of the range into buckets by the next 11 bits of their keys; the bucket in which the running
  // sum exceeds the target becomes the new range, until a range has at most kMaxItems values.
  template <typename Order, typename Weigh, typename TargetOf>
  __device__ bool SelectBucket(const Order& order, const Weigh& weigh, const TargetOf& target_of,
                               Mass* above, Mass* target) {
    constexpr int kDigitBits = 11;
    static_assert(1 << kDigitBits == kBuckets);
    uint64_t linear_prefix = 0, rank_prefix = 0;  // digits of the current bucket
    int linear_shift = 32, rank_shift = 64;
    const auto inside = [&](unsigned linear, uint64_t rank) {
      return static_cast<uint64_t>(linear) >> linear_shift == linear_prefix &&
             (rank_shift == 64 || rank >> rank_shift == rank_prefix);
    };
    for (bool first = true;; first = false) {
      int* const shift = linear_shift > 0 ? &linear_shift : &rank_shift;
      const bool by_linear = linear_shift > 0;
      const int next = max(0, *shift - kDigitBits);
      for (int i = Thread(); i < kBuckets; i += kThreads) {
        s_.histogram.mass[i] = 0;
        s_.histogram.count[i] = 0;
      }
      if (Thread() == 0) s_.found = false;
      __syncthreads();
      ForEachOfRow<1>([&](float value, int token) {
        const bool kept = Kept(value, token);
        const unsigned linear = kept ? order.Linear(value, token) : 0;
        const uint64_t rank = order.Rank(value, token);
        const uint64_t digits = by_linear ? static_cast<uint64_t>(linear) : rank;
        AddToBucket(kept && inside(linear, rank),
                    static_cast<int>((digits >> next) & (kBuckets - 1)), kept ? weigh(value) : 0);
      });
      __syncthreads();
      if (!FindBucket(first, target_of, *above, target)) {
        __syncthreads();  // s_ may be overwritten only after all threads have read it
        return false;
      }
      const unsigned digit = static_cast<unsigned>(s_.bucket) & ((1u << (*shift - next)) - 1);
      uint64_t* const prefix = by_linear ? &linear_prefix : &rank_prefix;
      *prefix = *prefix << (*shift - next) | digit;
      *above = s_.above;
      const int count = s_.bucket_count;
      *shift = next;
      __syncthreads();
      if (count <= kMaxItems) break;
    }
    if (Thread() == 0) s_.count = 0;
    __syncthreads();
    ForEachOfRow<1>([&](float value, int token) {
      if (!Kept(value, token)) return;
      if (inside(order.Linear(value, token), order.Rank(value, token))) AddItem(value, token);
    });
    __syncthreads();
    return true;
  }

  // Finds the bucket in which the running sum, which starts at `above`, exceeds *target. The first
  // pass (`first`) begins by computing *target from the sum of all buckets.
  template <typename TargetOf>
  __device__ bool FindBucket(bool first, const TargetOf& target_of, Mass above, Mass* target) {
    Mass total = 0;
    const int bucket = 2 * Thread();
    const Mass two[2] = {s_.histogram.mass[bucket], s_.histogram.mass[bucket + 1]};
    Mass before = above + BlockScan(two[0] + two[1], s_, &total);
    if (first) *target = target_of(total);
    for (int j = 0; j < 2; ++j) {
      if (before <= *target && *target < before + two[j]) {
        s_.found = true;
        s_.bucket = bucket + j;
        s_.bucket_count = s_.histogram.count[bucket + j];
        s_.above = before;
      }
      before += two[j];
    }
    __syncthreads();
    return s_.found;
  }

  // If `adds`, counts a value of weight `mass` in bucket number `bucket`. All lanes of a warp must
  // call this together. If all add to one bucket, one lane adds for all: fewer contended atomics.
  __device__ void AddToBucket(bool adds, int bucket, Mass mass) const {
    const unsigned adding = __ballot_sync(kWholeWarp, adds);
    if (adding == 0) return;
    const int leader = __ffs(static_cast<int>(adding)) - 1;
    const int first = __shfl_sync(kWholeWarp, bucket, leader);
    if (__all_sync(kWholeWarp, !adds || bucket == first)) {
      Mass sum = adds ? mass : 0;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
      if (Thread() % 32 != leader) return;
      atomicAdd(&s_.histogram.mass[first], sum);
      atomicAdd(&s_.histogram.count[first], __popc(adding));
    } else if (adds) {
      atomicAdd(&s_.histogram.mass[bucket], mass);
      atomicAdd(&s_.histogram.count[bucket], 1);
    }
  }

  const LogitRows& logits_;
  const float* const row_;
  const WarpOptions& warp_;
  WarperShared& s_;

  unsigned thread_max_key_ = 0;
  float max_ = 0.0f;
  bool listed_ = false;  // s_.items contains every value that may be kept, sorted
  int listed_items_ = 0;
  // Bounds set by the filters; a value is kept if it passes all three tests. top_k and top_p:
  // RankByValue <= value_cut_. min_p: probability >= min_p_bound_, or RankByValue <= keep_cut_.
  // typical_p: RankByDistance <= distance_cut_.
  uint64_t value_cut_ = 0, keep_cut_ = 0;
  double min_p_total_ = 0.0;
  float min_p_bound_ = 0.0f;
  bool typical_ = false;
  ByDistance distance_{};
  uint64_t distance_cut_ = 0;
};

}  // namespace quintet::cuda::warping
