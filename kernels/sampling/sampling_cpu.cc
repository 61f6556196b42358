#include <span>

#include "kernels/cpu_ops.h"
#include "kernels/sampling/warper.h"

namespace quintet::cpu {

void Sample(const SampleArgs& args, ThreadPool& pool) {
  const int64_t vocab = args.logits.dim[1];
  pool.ParallelFor(static_cast<int64_t>(args.draws.size()), [&](int64_t task, int thread) {
    const Draw& draw = args.draws[static_cast<size_t>(task)];
    const float* row = args.logits.as<float>() + draw.row * args.logits.stride[0];
    Warper warper(args.scratch.as<char>() + thread * Warper::ScratchBytes(vocab), vocab);
    const std::span<const WarpedToken> kept =
        warper.Warp({row, static_cast<size_t>(vocab)}, draw.warp);
    const auto position = static_cast<uint32_t>(args.lens[static_cast<size_t>(draw.lens_at)]);
    const int32_t token = kept.empty() ? 0 : DrawToken(kept, {draw.seed, draw.sequence, position});
    args.tokens.as<int32_t>()[task] = token;
    if (args.next_tokens.defined()) args.next_tokens.as<int32_t>()[draw.row] = token;
  });
}

int64_t SampleScratchBytes(int64_t vocab, const ThreadPool& pool) {
  return pool.threads() * Warper::ScratchBytes(vocab);
}

}  // namespace quintet::cpu
