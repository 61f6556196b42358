// Beam sampling on a GPU, in two kernels. RowCandidatesKernel: one block per beam applies the
// logits warpers to its row (kernels/sampling/warper.cuh) and keeps the k surviving tokens with
// the greatest random keys (GumbelKey: logit plus Gumbel noise). MergeCandidatesKernel: one block
// per request merges the candidates of its beams.
#include <algorithm>

#include "kernels/base/random.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"
#include "kernels/sampling/warper.cuh"

namespace quintet::cuda {
namespace {

using warping::kMaxItems;
using warping::kThreads;
using warping::Thread;

// BestKeys sorts its buffer after this many new candidates have been appended.
constexpr int kSortBatch = kThreads / 4;
// Largest k of a request. The buffer of BestKeys has room for kMaxItems = 2 * kThreads keys: the k
// best keys, kSortBatch - 1 pending keys and one new key from every thread.
constexpr int kMaxCandidates = kThreads - kSortBatch;

// One of the k best candidates of a row.
struct KeyedCandidate {
  uint64_t key;  // a lower key is a better candidate
  float value;
  int32_t index;  // -1: none
};

// Kernel arguments: the arrays of SampleBeamsArgs, as addresses in device memory.
struct SampleBeamsParams {
  LogitRows logits;
  const float* row_bias;
  int64_t bias_stride;
  const BeamDraw* draws;
  const int32_t* lens;
  KeyedCandidate* best;  // [rows, k_max] scratch
  float* values;
  int64_t values_stride;
  int32_t* indices;
  int64_t indices_stride;
  int k_max;
};

// Maps a double to an integer key such that a greater double gets a smaller key.
__device__ __forceinline__ uint64_t DescendingKey(double key) {
  const auto bits = static_cast<uint64_t>(__double_as_longlong(key));
  return bits >> 63 != 0 ? bits : ~(bits | uint64_t{1} << 63);
}

// Keeps the k smallest keys that the threads of a block offer; of equal keys, the one with the
// lower id is kept. New keys are appended after the k best so far in shared memory, and the buffer
// is sorted whenever kSortBatch new keys have accumulated. All threads of the block must call every
// member function together.
class BestKeys {
 public:
  __device__ BestKeys(int k, warping::WarperShared& s) : k_(k), s_(s) {
    if (Thread() == 0) s_.count = 0;
    __syncthreads();
  }

  __device__ void Offer(bool offers, uint64_t key, int id) {
    const bool accepted = offers && (key < bound_ || (key == bound_ && id < bound_id_));
    if (accepted) {
      const int at = atomicAdd(&s_.count, 1);
      s_.best.key[at] = key;
      s_.best.id[at] = id;
    }
    n_ += __syncthreads_count(accepted ? 1 : 0);
    if (n_ >= k_ + kSortBatch) Sort();
  }
  // Sorts the kept keys in ascending order and returns their number, at most k.
  __device__ int Finish() {
    Sort();
    return n_;
  }

 private:
  static_assert(kMaxCandidates + kSortBatch + kThreads <= kMaxItems);

  __device__ void Sort() {
    const int size = warping::SortingSize(n_);
    for (int i = n_ + Thread(); i < size; i += kThreads) {
      s_.best.key[i] = ~uint64_t{0};
      s_.best.id[i] = kNoId;
    }
    warping::SortBy(size, [this](int low, int high, bool ascending) {
      const uint64_t a = s_.best.key[low], b = s_.best.key[high];
      const int a_id = s_.best.id[low], b_id = s_.best.id[high];
      if ((a > b || (a == b && a_id > b_id)) != ascending) return;
      s_.best.key[low] = b;
      s_.best.key[high] = a;
      s_.best.id[low] = b_id;
      s_.best.id[high] = a_id;
    });
    if (n_ >= k_) {
      n_ = k_;
      bound_ = s_.best.key[k_ - 1];
      bound_id_ = s_.best.id[k_ - 1];
    }
    if (Thread() == 0) s_.count = n_;
    __syncthreads();
  }

  static constexpr int kNoId = 0x7fffffff;

  const int k_;
  warping::WarperShared& s_;
  int n_ = 0;
  // bound_ is the key and bound_id_ the id of the k-th best candidate so far. Worse candidates are
  // rejected.
  uint64_t bound_ = ~uint64_t{0};
  int bound_id_ = kNoId;
};

// best[row] = the k tokens of the row with the greatest GumbelKey(warped logit + row bias), among
// the tokens that survive the warpers.
// Shapes: logits [rows, vocab] f32, best [rows, k_max].
// Numerics: logit / temperature and exponentials in f32; the warpers round the exponentials to
// integers, whose sums are exact (warper.cuh); the random keys are f64.
// Mapping: one block per row (grid: requests x beams).
// Bound: if top_k leaves few tokens, latency of reading the row twice through one SM. Without
// top_k, two f64 logarithms per token: about 25 us on one SM for a vocabulary of 32128 (predicted,
// not measured).
// Test: tests/kernels/sampling/beam_sampling_test.cc.
__global__ void __launch_bounds__(kThreads)
    RowCandidatesKernel(const __grid_constant__ SampleBeamsParams c) {
  __shared__ warping::WarperShared s;
  WaitOnDependentGrids();
  const BeamDraw draw = c.draws[blockIdx.x];
  const int beam = static_cast<int>(blockIdx.y);
  if (beam >= draw.rows) return;
  const int row = draw.draw.row + beam, first = beam * c.logits.vocab;
  const float bias = c.row_bias[row * c.bias_stride];
  const DrawId draw_id{draw.draw.seed, draw.draw.sequence,
                       static_cast<uint32_t>(c.lens[draw.draw.lens_at])};
  warping::RowWarper warper(c.logits, row, draw.draw.warp, s);
  const bool possible = warper.Warp();
  BestKeys best(draw.k, s);
  if (possible) {
    warper.VisitTogether([&](bool kept, float value, int token) {
      const auto index = static_cast<uint32_t>(first + token);
      best.Offer(kept, kept ? DescendingKey(GumbelKey(__fadd_rn(value, bias), draw_id, index)) : 0,
                 token);
    });
  }
  const int n = best.Finish();
  KeyedCandidate* out = c.best + static_cast<int64_t>(row) * c.k_max;
  for (int i = Thread(); i < draw.k; i += kThreads) {
    if (i < n) {
      const int token = s.best.id[i];
      out[i] = {s.best.key[i], __fadd_rn(warper.ScaledLogit(token), bias), first + token};
    } else {
      out[i] = {0, kMinusInf, -1};
    }
  }
}

// Merges the k best candidates of each beam of a request into the k best of the request, and writes
// these to `values` and `indices` of SampleBeamsArgs.
// Shapes: best [rows, k_max]; values and indices [entries, k_max]: one row (entry) per request.
// Mapping: one block per request.
// Bound: latency of reading and sorting the beams * k candidates.
// Test: tests/kernels/sampling/beam_sampling_test.cc.
__global__ void __launch_bounds__(kThreads)
    MergeCandidatesKernel(const __grid_constant__ SampleBeamsParams c) {
  __shared__ warping::WarperShared s;
  WaitOnDependentGrids();
  const BeamDraw draw = c.draws[blockIdx.x];
  const KeyedCandidate* from = c.best + static_cast<int64_t>(draw.draw.row) * c.k_max;
  const auto at = [&](int i) { return i / draw.k * c.k_max + i % draw.k; };
  const int all = draw.rows * draw.k;
  BestKeys best(draw.k, s);
  for (int base = 0; base < all; base += kThreads) {
    const int i = base + Thread();
    const bool valid = i < all && from[at(i)].index >= 0;
    best.Offer(valid, valid ? from[at(i)].key : 0, i);
  }
  const int n = best.Finish();
  for (int i = Thread(); i < c.k_max; i += kThreads) {
    const KeyedCandidate out = i < n ? from[at(s.best.id[i])] : KeyedCandidate{0, kMinusInf, -1};
    c.values[draw.entry * c.values_stride + i] = out.value;
    c.indices[draw.entry * c.indices_stride + i] = out.index;
  }
}

}  // namespace

void SampleBeams(const SampleBeamsArgs& args, CudaStream& stream) {
  if (args.draws.empty()) return;
  const int64_t k_max = args.values.dim[1];
  QT_CHECK_LE(k_max, kMaxCandidates);
  const SampleBeamsParams call{MakeLogitRows(args.logits),
                               args.row_bias.as<float>(),
                               args.row_bias.stride[0],
                               stream.DevicePtr(args.draws.data()),
                               stream.DevicePtr(args.lens.data()),
                               args.scratch.as<KeyedCandidate>(),
                               args.values.as<float>(),
                               args.values.stride[0],
                               args.indices.as<int32_t>(),
                               args.indices.stride[0],
                               static_cast<int>(k_max)};
  int32_t rows = 1;
  for (const BeamDraw& draw : args.draws) rows = std::max(rows, draw.rows);
  const auto n = static_cast<unsigned>(args.draws.size());
  Launch(stream, dim3(n, static_cast<unsigned>(rows)), dim3(kThreads), 0, RowCandidatesKernel,
         call);
  Launch(stream, dim3(n), dim3(kThreads), 0, MergeCandidatesKernel, call);
}

int64_t SampleBeamsScratchBytes(int64_t rows, int64_t, int64_t k_max, const CudaStream&) {
  return rows * k_max * static_cast<int64_t>(sizeof(KeyedCandidate));
}

}  // namespace quintet::cuda
