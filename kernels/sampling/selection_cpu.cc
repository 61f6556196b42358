// Exact top-k in two phases. Retrieve: every row is split into chunks and the maximum of each chunk
// is computed. The k-th largest of these maxima over all rows of a request is a lower bound of the
// request's k-th best value. Therefore only chunks whose maximum is >= the bound are read again,
// and only values >= the bound become candidates: about k of them. Rerank: the candidates are
// sorted.
//
// The candidate buffer is bounded. When it is full (many nearly equal values, ties, few finite
// values), it is pruned to its k best candidates, and the value of the worst of these becomes the
// new bound. Candidates are added in ascending index order, and of equal values the lower index is
// better. From then on a value equal to the bound is therefore dropped.
#include <algorithm>
#include <limits>

#include "kernels/base/carver.h"
#include "kernels/cpu_ops.h"
#include "kernels/runtime/buffer.h"

#ifndef QUINTET_KERNELS_SELECTION_CPU_TYPES_
#define QUINTET_KERNELS_SELECTION_CPU_TYPES_
namespace quintet::cpu {

// Maps a score x to the value that is ranked: fl(fl(x - shift) + bias), where fl rounds to f32,
// with NaN replaced by -inf (see TopKArgs). The default shift 0 and bias -0 leave every x except
// NaN unchanged.
struct RowTransform {
  float shift = 0.0f, bias = -0.0f;

  RowTransform(const TopKArgs& args, int64_t row) {
    const Tensor& shifts = IsLogSoftmax(args, row) ? args.log_sums : args.row_shift;
    if (shifts.defined()) shift = shifts.as<float>()[row * shifts.stride[0]];
    if (args.row_bias.defined()) bias = args.row_bias.as<float>()[row * args.row_bias.stride[0]];
  }
  float operator()(float x) const {
    const float shifted = x - shift;
    const float value = shifted + bias;
    return value == value ? value : -std::numeric_limits<float>::infinity();
  }
  static bool IsLogSoftmax(const TopKArgs& args, int64_t row) {
    if (args.log_softmax.empty()) return false;
    const auto next = std::upper_bound(args.row_offsets.begin(), args.row_offsets.end(), row);
    return args.log_softmax[static_cast<size_t>(next - args.row_offsets.begin() - 1)] != 0;
  }
};

struct Candidate {
  float value;
  int32_t index;
  bool Before(const Candidate& other) const {
    return value > other.value || (value == other.value && index < other.index);
  }
};

struct ChunkRange {
  int64_t row, first, last;  // chunks [first, last) of a row
};

// The division of rows into chunks, and the layout of the scratch memory.
struct TopKPlan {
  int64_t chunk;          // elements per chunk; the last chunk of a row may be shorter
  int64_t chunks;         // chunks per row
  int64_t capacity;       // candidates per thread
  float* maxima;          // [rows, chunks] transformed maxima
  float* ranked;          // [rows, chunks] copy of maxima, reordered to find the k-th largest
  Candidate* candidates;  // [threads, capacity]
  int64_t bytes;

  TopKPlan(const Tensor& scratch, int64_t rows, int64_t vocab, int64_t k_max, int threads) {
    chunk = (std::clamp<int64_t>(vocab / (4 * k_max), 64, 1024) + 15) / 16 * 16;
    chunks = (vocab + chunk - 1) / chunk;
    capacity = 2 * k_max + 1024;
    Carver carver(scratch.data);
    maxima = static_cast<float*>(carver.Take(rows * chunks * 4));
    ranked = static_cast<float*>(carver.Take(rows * chunks * 4));
    candidates = static_cast<Candidate*>(
        carver.Take(threads * capacity * static_cast<int64_t>(sizeof(Candidate))));
    bytes = carver.used_bytes();
  }
};

// Collects the best candidates of one request. At first a candidate is added if its value is >= the
// bound. If the bound is -inf, or once the buffer has been full and was pruned, a candidate is
// added only if its value is > the bound.
class CandidateBuffer {
 public:
  CandidateBuffer(Candidate* data, int64_t capacity, int64_t k, float bound)
      : data_(data), capacity_(capacity), k_(k), bound_(bound) {
    strict_ = bound == -std::numeric_limits<float>::infinity();  // -inf is never a candidate
  }

  float bound() const { return bound_; }
  bool Passes(float value) const { return strict_ ? value > bound_ : value >= bound_; }
  void Add(Candidate candidate) {
    if (count_ == capacity_) Prune();
    if (Passes(candidate.value)) data_[count_++] = candidate;
  }
  // Sorts the best k candidates to the front of the buffer and returns their number, at most k.
  int64_t Rank() {
    const int64_t n = std::min(k_, count_);
    std::partial_sort(data_, data_ + n, data_ + count_, Order);
    return n;
  }

 private:
  static bool Order(const Candidate& a, const Candidate& b) { return a.Before(b); }
  void Prune() {
    std::nth_element(data_, data_ + k_ - 1, data_ + count_, Order);
    count_ = k_;
    bound_ = data_[k_ - 1].value;
    strict_ = true;
  }

  Candidate* data_;
  int64_t capacity_, k_, count_ = 0;
  float bound_;
  bool strict_;
};

}  // namespace quintet::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/selection_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/base/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

// Computes the maximum of the transformed scores (RowTransform) of each chunk in a range of chunks,
// and stores it in plan.maxima. RowTransform is monotonic even with rounding, so it suffices to
// transform the maximum of the untransformed scores.
void ChunkMaxima(const TopKArgs& args, const TopKPlan& plan, const ChunkRange& range) {
  const int64_t vocab = args.scores.dim[1];
  const float* x = args.scores.as<float>() + range.row * args.scores.stride[0];
  const RowTransform transform(args, range.row);
  for (int64_t c = range.first; c < range.last; ++c) {
    const int64_t n = std::min(plan.chunk, vocab - c * plan.chunk);
    plan.maxima[range.row * plan.chunks + c] =
        transform(MaxOf(x + c * plan.chunk, static_cast<size_t>(n)));
  }
}

// Transforms the scores x [n] to values (RowTransform) and adds the values that pass the bound of
// `buffer` to it. `index` is the flat index of x[0]: (row within the request) * vocab + token.
void Retrieve(const float* x, int64_t n, const RowTransform& transform, int64_t index,
              CandidateBuffer* buffer) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, transform.shift), bias = hn::Set(d, transform.bias);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto value = hn::Add(hn::Sub(hn::LoadU(d, x + i), shift), bias);
    if (hn::AllFalse(d, hn::Ge(value, hn::Set(d, buffer->bound())))) continue;
    for (int64_t j = i; j < i + lanes; ++j) {
      const float v = transform(x[j]);
      if (buffer->Passes(v)) buffer->Add({v, static_cast<int32_t>(index + j)});
    }
  }
  for (; i < n; ++i) {
    const float v = transform(x[i]);
    if (buffer->Passes(v)) buffer->Add({v, static_cast<int32_t>(index + i)});
  }
}

void RetrieveRow(const TopKArgs& args, const TopKPlan& plan, int64_t row, int64_t first_index,
                 CandidateBuffer* buffer) {
  const int64_t vocab = args.scores.dim[1];
  const float* x = args.scores.as<float>() + row * args.scores.stride[0];
  const RowTransform transform(args, row);
  for (int64_t c = 0; c < plan.chunks; ++c) {
    if (!buffer->Passes(plan.maxima[row * plan.chunks + c])) continue;
    const int64_t begin = c * plan.chunk;
    Retrieve(x + begin, std::min(plan.chunk, vocab - begin), transform, first_index + begin,
             buffer);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet::cpu {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

HWY_EXPORT(ChunkMaxima);
HWY_EXPORT(RetrieveRow);

void FindMaxima(const TopKArgs& args, const TopKPlan& plan, ThreadPool& pool) {
  constexpr int64_t kElementsPerTask = 16384;
  const int64_t rows = args.row_offsets.back();
  const int64_t per_task = std::max<int64_t>(1, kElementsPerTask / plan.chunk);
  const int64_t tasks_per_row = (plan.chunks + per_task - 1) / per_task;
  const auto body = [&](int64_t task, int) {
    const int64_t first = task % tasks_per_row * per_task;
    const ChunkRange range{task / tasks_per_row, first, std::min(plan.chunks, first + per_task)};
    HWY_DYNAMIC_DISPATCH(ChunkMaxima)(args, plan, range);
  };
  if (rows * args.scores.dim[1] > kElementsPerTask) {
    pool.ParallelFor(rows * tasks_per_row, body);
  } else {
    for (int64_t task = 0; task < rows * tasks_per_row; ++task) body(task, 0);
  }
}

// Returns the k-th largest chunk maximum of rows [begin, end); at least k values of these rows are
// >= it. Returns -inf if the rows have fewer than k chunks.
float LowerBound(const TopKPlan& plan, int64_t begin, int64_t end, int64_t k) {
  const int64_t n = (end - begin) * plan.chunks;
  if (n < k) return kMinusInf;
  float* ranked = plan.ranked + begin * plan.chunks;
  std::copy_n(plan.maxima + begin * plan.chunks, n, ranked);
  std::nth_element(ranked, ranked + k - 1, ranked + n, std::greater<float>());
  return ranked[k - 1];
}

// Completes the k results of a request that has only `found` < k values above -inf. Results [found,
// k) become tokens whose value is -inf, in ascending index order. Results for which no token is
// left, and results [k, k_max), get value -inf and index -1.
void FillTail(const TopKArgs& args, int64_t request, int64_t found, int64_t k) {
  const int64_t begin = args.row_offsets[static_cast<size_t>(request)];
  const int64_t end = args.row_offsets[static_cast<size_t>(request) + 1];
  const int64_t vocab = args.scores.dim[1];
  float* values = args.values.as<float>() + request * args.values.stride[0];
  int32_t* indices = args.indices.as<int32_t>() + request * args.indices.stride[0];
  for (int64_t row = begin; row < end && found < k; ++row) {
    const RowTransform transform(args, row);
    const float* x = args.scores.as<float>() + row * args.scores.stride[0];
    for (int64_t i = 0; i < vocab && found < k; ++i) {
      if (transform(x[i]) != kMinusInf) continue;
      values[found] = kMinusInf;
      indices[found++] = static_cast<int32_t>((row - begin) * vocab + i);
    }
  }
  std::fill(values + found, values + args.values.dim[1], kMinusInf);
  std::fill(indices + found, indices + args.values.dim[1], -1);
}

void SelectRequest(const TopKArgs& args, const TopKPlan& plan, int64_t request, int thread) {
  const int64_t begin = args.row_offsets[static_cast<size_t>(request)];
  const int64_t end = args.row_offsets[static_cast<size_t>(request) + 1];
  const int64_t k = args.k[static_cast<size_t>(request)];
  Candidate* candidates = plan.candidates + thread * plan.capacity;
  CandidateBuffer buffer(candidates, plan.capacity, k, LowerBound(plan, begin, end, k));
  for (int64_t row = begin; row < end; ++row) {
    HWY_DYNAMIC_DISPATCH(RetrieveRow)(args, plan, row, (row - begin) * args.scores.dim[1], &buffer);
  }
  const int64_t found = buffer.Rank();
  for (int64_t i = 0; i < found; ++i) {
    args.values.as<float>()[request * args.values.stride[0] + i] = candidates[i].value;
    args.indices.as<int32_t>()[request * args.indices.stride[0] + i] = candidates[i].index;
  }
  FillTail(args, request, found, k);
}

}  // namespace

void TopK(const TopKArgs& args, ThreadPool& pool) {
  const TopKPlan plan(args.scratch, args.scores.dim[0], args.scores.dim[1], args.values.dim[1],
                      pool.threads());
  if (args.log_sums.defined()) {
    const int64_t rows = args.row_offsets.back();
    cpu::LogSumExp({.logits = args.scores.Rows(0, rows), .out = args.log_sums}, pool);
  }
  FindMaxima(args, plan, pool);
  pool.ParallelFor(static_cast<int64_t>(args.k.size()), [&](int64_t request, int thread) {
    SelectRequest(args, plan, request, thread);
    if (args.best.defined()) {
      args.best.as<int32_t>()[request] =
          args.indices.as<int32_t>()[request * args.indices.stride[0]];
    }
  });
}

int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const ThreadPool& pool) {
  return TopKPlan(Tensor(), rows, vocab, k_max, pool.threads()).bytes;
}

}  // namespace quintet::cpu
#endif
