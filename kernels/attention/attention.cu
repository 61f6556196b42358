// GPU attention: converts AttentionArgs to an AttentionCall and selects the kernel for each
// sequence.
#include <algorithm>
#include <span>

#include "kernels/attention/call.cuh"
#include "kernels/cuda_ops.h"

namespace quintet::cuda {
namespace {

bool Aligned(const void* data, DType dtype, std::initializer_list<int64_t> strides) {
  const int64_t bytes = DTypeBytes(dtype);
  bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int64_t stride : strides) aligned &= stride * bytes % 16 == 0;
  return aligned;
}
bool Aligned(const Tensor& t) {
  return Aligned(t.data, t.dtype, {t.stride[0], t.stride[1], t.dim[2]});
}

template <typename T>
const T* TwinOrNull(std::span<const T> span, CudaStream& stream) {
  return span.empty() ? nullptr : stream.DevicePtr(span.data());
}

void PointToPackedRows(const AttentionArgs& args, CudaStream& stream, AttentionCall& call) {
  call.k = args.k.data;
  call.v = args.v.data;
  call.k_rows = args.k.dim[0];
  call.k_row = args.k.stride[0];
  call.k_head = args.k.stride[1];
  call.v_row = args.v.stride[0];
  call.v_head = args.v.stride[1];
  call.kv_offsets = stream.DevicePtr(args.kv_offsets.data());
  call.kv_vectors = Aligned(args.k) && Aligned(args.v);
}

void PointIntoCache(const AttentionArgs& args, CudaStream& stream, AttentionCall& call) {
  const KvCache& cache = *args.cache;
  const int64_t bytes = DTypeBytes(cache.dtype);
  // The kernels compute a key's row index in the cache with 32 bits.
  QT_CHECK_LT(cache.pages * cache.page_elements() / cache.head_dim, int64_t{1} << 31);
  const char* data = cache.as<char>();
  call.k = data + cache.ChunkOffset(args.layer, false, 0) * bytes;
  call.v = data + cache.ChunkOffset(args.layer, true, 0) * bytes;
  call.k_row = call.v_row = cache.head_dim;
  call.k_head = call.v_head = cache.page_size * cache.head_dim;
  call.kv_lens = TwinOrNull(args.kv_lens, stream);
  call.slots_stride = args.slots_stride;
  call.slots_len = static_cast<int>(args.kv_lens.size() == 1 ? args.kv_lens[0] : args.slots_stride);
  if (call.slots_len > 0) call.slots = stream.DevicePtr(args.slots);
  call.page_size = Divisor(static_cast<uint32_t>(cache.page_size));
  call.page_rows = static_cast<uint32_t>(cache.page_elements() / cache.head_dim);
  call.kv_vectors = Aligned(cache.data, cache.dtype, {cache.head_dim});
  call.kv_e4m3 = cache.dtype == DType::kF8;
}

AttentionCall MakeCall(const AttentionArgs& args, CudaStream& stream) {
  AttentionCall call;
  call.q = args.q.data;
  call.out = args.out.data;
  call.q_rows = args.q.dim[0];
  call.q_row = args.q.stride[0];
  call.q_head = args.q.stride[1];
  call.out_row = args.out.stride[0];
  call.out_head = args.out.stride[1];
  call.q_vectors = Aligned(args.q) && Aligned(args.out);
  call.q_offsets = stream.DevicePtr(args.q_offsets.data());
  call.q_positions = TwinOrNull(args.q_positions, stream);
  if (args.cache == nullptr) {
    PointToPackedRows(args, stream, call);
  } else {
    PointIntoCache(args, stream, call);
  }
  call.sequences = static_cast<int>(args.q_offsets.size()) - 1;
  call.heads = static_cast<int>(args.q.dim[1]);
  call.head_dim = static_cast<int>(args.q.dim[2]);
  call.causal = args.causal;
  call.fresh = args.fresh;
  call.scale = args.scale;
  call.bias = BiasTables(args.bias);
  if (args.mask != nullptr) {
    const ColumnMask& mask = *args.mask;
    call.mask = {TwinOrNull(mask.lower_begin, stream), TwinOrNull(mask.lower_end, stream),
                 TwinOrNull(mask.upper_begin, stream), TwinOrNull(mask.upper_end, stream)};
    call.mask_tiles = stream.DevicePtr(mask.tiles.data());
  }
  return call;
}

// Adds to `call` what LocalAttentionCall has more. Neither a reach nor global keys: nothing
// changes.
LocalAttentionCall MakeLocalCall(const AttentionCall& call, const AttentionArgs& args,
                                 CudaStream& stream) {
  LocalAttentionCall local(call);
  if (args.mask != nullptr && args.mask->reach > 0) {
    local.reach = static_cast<int>(args.mask->reach);
  }
  if (args.globals == nullptr) return local;
  const GlobalKeys& globals = *args.globals;
  local.global_k = globals.k.data;
  local.global_v = globals.v.data;
  local.global_k_row = globals.k.stride[0];
  local.global_k_head = globals.k.stride[1];
  local.global_v_row = globals.v.stride[0];
  local.global_v_head = globals.v.stride[1];
  local.global_offsets = stream.DevicePtr(globals.offsets.data());
  local.global_block = static_cast<int>(globals.block);
  local.global_vectors = Aligned(globals.k) && Aligned(globals.v);
  local.global_bias = BiasTables(globals.bias);
  return local;
}

// Smallest non-zero q_len, largest q_len and largest kv_len of a call's sequences, in tokens, from
// the host copies of the offsets and lengths.
struct Lengths {
  int min_q = INT32_MAX, max_q = 0, max_kv = 0;

  explicit Lengths(const AttentionArgs& args) {
    for (size_t s = 0; s + 1 < args.q_offsets.size(); ++s) {
      const int q = args.q_offsets[s + 1] - args.q_offsets[s];
      if (q > 0) min_q = std::min(min_q, q);
      max_q = std::max(max_q, q);
      max_kv =
          std::max(max_kv, args.cache != nullptr ? args.kv_lens[s]
                                                 : args.kv_offsets[s + 1] - args.kv_offsets[s]);
    }
  }
};

// Returns whether AttendHopper (attention/hopper.cu) supports this call.
bool HopperSupports(const AttentionCall& call, const CudaStream& stream) {
  const bool any_keys = call.kv_lens != nullptr ? call.slots != nullptr : call.k_rows > 0;
  const bool bias_fits =
      call.bias.kind == BiasKind::kTable  ? call.bias.saturation <= kHopperSaturation
      : call.bias.kind == BiasKind::kFire ? call.bias.segments <= kHopperKnots + 1
                                          : true;
  return stream.hopper() && any_keys && bias_fits && call.scale > 0 && call.q_vectors &&
         call.kv_vectors && !call.kv_e4m3 && call.head_dim <= kHopperHeadDim;
}

// Returns whether ALiBi tile skipping (attention/hopper_alibi_skip.cuh) saves more time than the
// computation of the row norms costs. It saves time only if sequences are so long that P is 0 in
// many tiles of distant keys.
bool WorthSkippingTiles(const AttentionCall& call, int max_kv_len) {
  constexpr int kFar = 4096;
  return call.bias.kind == BiasKind::kAlibi && call.kv_lens == nullptr &&
         call.mask_tiles == nullptr && max_kv_len >= kFar;
}

}  // namespace

void Attention(const AttentionArgs& args, CudaStream& stream) {
  const Lengths lengths(args);
  if (lengths.max_q == 0) return;
  AttentionCall call = MakeCall(args, stream);
  const int64_t rows_total = args.q_offsets.back() - args.q_offsets.front();
  const bool has_reach = args.mask != nullptr && args.mask->reach > 0;
  // The Hopper kernel has no global keys; it skips hidden tiles quickly without ColumnMask::reach.
  const bool local_kernel =
      args.globals != nullptr || (has_reach && call.bias.kind != BiasKind::kFire &&
                                  (args.q.dtype == DType::kF32 || !HopperSupports(call, stream)));
  DispatchDType(args.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, float>) {
      if (local_kernel) {
        return AttendF32Local(MakeLocalCall(call, args, stream), rows_total, stream);
      }
      AttendF32(call, rows_total, lengths.max_q, stream);
    } else {
      if (local_kernel) {
        return AttendTiledLocal<T>(MakeLocalCall(call, args, stream), rows_total, stream);
      }
      const bool any_length = !stream.long_attention();
      // few: whether AttendFewRows supports this call. If so, it handles every sequence of at most
      // kFewRows queries, and another kernel handles the sequences with more queries.
      const bool few = any_length && call.q_vectors && call.kv_vectors &&
                       call.k_row == call.v_row && call.bias.kind != BiasKind::kFire &&
                       call.mask_tiles == nullptr && call.head_dim <= kFewRowsHeadDim;
      if (few) call.few_rows = kFewRows;
      if (lengths.max_q > call.few_rows) {
        if (any_length && ShortSuits(call, rows_total, lengths.max_kv, stream)) {
          AttendShort<T>(call, rows_total, lengths.max_q, lengths.max_kv, stream);
        } else if (HopperSupports(call, stream)) {
          if (WorthSkippingTiles(call, lengths.max_kv)) {
            ComputeMaxNorms<T>(&call, args.scratch.as<float>(), stream);
          }
          AttendHopper<T>(call, rows_total, stream);
        } else {
          AttendTiled<T>(call, rows_total, stream);
        }
      }
      if (lengths.min_q <= call.few_rows) {
        AttendFewRows<T>(call, std::min(lengths.max_q, call.few_rows), lengths.max_kv, stream);
      }
    }
  });
}

int64_t AttentionScratchBytes(int64_t rows, int64_t heads, int64_t, const CudaStream& stream) {
  return stream.hopper() ? 2 * NormTiles(rows) * heads * 4 : 0;
}

}  // namespace quintet::cuda
