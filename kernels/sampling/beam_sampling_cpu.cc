#include <algorithm>
#include <limits>
#include <span>

#include "kernels/base/random.h"
#include "kernels/cpu_ops.h"
#include "kernels/sampling/warper.h"

namespace quintet::cpu {
namespace {

struct Candidate {
  double key;
  float value;
  int32_t index;
};

bool Better(const Candidate& a, const Candidate& b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}

int64_t ThreadBytes(int64_t vocab, int64_t k_max) {
  return Warper::ScratchBytes(vocab) + k_max * static_cast<int64_t>(sizeof(Candidate));
}

// Keeps the k best of the candidates that are added, in a binary heap with the worst one at the
// front. The caller provides memory for k candidates.
class BestCandidates {
 public:
  BestCandidates(Candidate* room, int64_t k) : begin_(room), k_(k) {}

  void Add(const Candidate& candidate) {
    if (size_ == k_ && !Better(candidate, begin_[0])) return;
    if (size_ == k_) std::pop_heap(begin_, begin_ + size_--, Better);
    begin_[size_++] = candidate;
    std::push_heap(begin_, begin_ + size_, Better);
  }
  std::span<const Candidate> Sorted() {
    std::sort_heap(begin_, begin_ + size_, Better);
    return {begin_, static_cast<size_t>(size_)};
  }

 private:
  Candidate* const begin_;
  const int64_t k_;
  int64_t size_ = 0;
};

}  // namespace

void SampleBeams(const SampleBeamsArgs& args, ThreadPool& pool) {
  const int64_t vocab = args.logits.dim[1], k_max = args.values.dim[1];
  pool.ParallelFor(static_cast<int64_t>(args.draws.size()), [&](int64_t task, int thread) {
    const BeamDraw& draw = args.draws[static_cast<size_t>(task)];
    char* scratch = args.scratch.as<char>() + thread * ThreadBytes(vocab, k_max);
    Warper warper(scratch, vocab);
    scratch += Warper::ScratchBytes(vocab);
    BestCandidates best(reinterpret_cast<Candidate*>(scratch), draw.k);
    const DrawId draw_id{draw.draw.seed, draw.draw.sequence,
                         static_cast<uint32_t>(args.lens[static_cast<size_t>(draw.draw.lens_at)])};
    for (int64_t beam = 0; beam < draw.rows; ++beam) {
      const int64_t row = draw.draw.row + beam;
      const float* logits = args.logits.as<float>() + row * args.logits.stride[0];
      const float bias = args.row_bias.as<float>()[row * args.row_bias.stride[0]];
      for (const WarpedToken& w :
           warper.Warp({logits, static_cast<size_t>(vocab)}, draw.draw.warp)) {
        const float value = w.value + bias;
        const auto index = static_cast<int32_t>(beam * vocab + w.token);
        best.Add({GumbelKey(value, draw_id, static_cast<uint32_t>(index)), value, index});
      }
    }
    float* values = args.values.as<float>() + draw.entry * args.values.stride[0];
    int32_t* indices = args.indices.as<int32_t>() + draw.entry * args.indices.stride[0];
    std::fill_n(values, k_max, -std::numeric_limits<float>::infinity());
    std::fill_n(indices, k_max, -1);
    for (const Candidate& c : best.Sorted()) {
      *values++ = c.value;
      *indices++ = c.index;
    }
  });
}

int64_t SampleBeamsScratchBytes(int64_t, int64_t vocab, int64_t k_max, const ThreadPool& pool) {
  return pool.threads() * ThreadBytes(vocab, k_max);
}

}  // namespace quintet::cpu
