#include "kernels/cuda_ops.h"
#include "kernels/ops/rotary_channels.h"
#include "kernels/runtime/cuda.cuh"
#include "kernels/runtime/e4m3.cuh"

namespace quintet::cuda {
namespace {

template <typename X, typename Y>
struct RotateArgs {
  const X* x;
  Y* y;
  const int64_t* row_offset;  // null: y_row
  bool in_place;
  const int32_t* positions;
  int64_t x_row, x_head, y_row, y_head, position_stride;
  int heads, pairs;
  bool interleaved;
  float xpos_base;  // 0: no xPos
  int64_t xpos_center;
  int xpos_sign;
};

template <typename Y>
__device__ __forceinline__ void Store(float value, Y* to) {
  if constexpr (std::is_same_v<Y, uint8_t>) {
    StoreE4m3<float, 1>(&value, to);
  } else {
    *to = FromF32<Y>(value);
  }
}

// Returns {cos(t) * scale, sin(t) * scale}, where t is the rotation angle of a pair of channels at
// a position and `scale` is the xPos scale (1 without xPos).
template <typename Args>
__device__ float2 Rotation(const Args& a, const RotaryChannels& channels, int pair,
                           int32_t position) {
  const float angle = static_cast<float>(position) * channels.theta[pair];
  float2 rotation = {cosf(angle), sinf(angle)};
  if (a.xpos_base != 0.0f) {
    const float power = static_cast<float>(position - a.xpos_center) / a.xpos_base;
    const float scale = powf(channels.zeta[pair], power);
    rotation.x = a.xpos_sign > 0 ? rotation.x * scale : rotation.x / scale;
    rotation.y = a.xpos_sign > 0 ? rotation.y * scale : rotation.y / scale;
  }
  return rotation;
}

// Channels (a, b) of a pair become (a cos t - b sin t, b cos t + a sin t) * scale, where t is the
// rotation angle (Rotation); other channels are copied.
// Shapes: x, y [rows, heads, head_dim], positions [rows]. Y is uint8_t for kF8.
// Math: f32 for angles and results. The frequency of each pair (theta) and its xPos base (zeta) are
// computed on the host, by the code that the CPU backend uses too.
// Mapping: one CTA per row. One thread per pair rotates that pair in every head. If y is not x, one
// more thread per channel outside the pairs copies that channel in every head.
// Bound: reading x and writing y once; only FAT5's rotary models use this op.
// Test: tests/kernels/ops/rotary_test.cc.
template <typename X, typename Y>
__global__ void RotaryKernel(RotateArgs<X, Y> a, const __grid_constant__ RotaryChannels channels) {
  WaitOnDependentGrids();
  const int64_t row = blockIdx.x;
  const int c = static_cast<int>(threadIdx.x);
  const int64_t to = a.row_offset == nullptr ? row * a.y_row : a.row_offset[row];
  const X* x = a.x + (a.in_place ? to : row * a.x_row);
  Y* y = a.y + to;
  if (c >= a.pairs) {
    const int channel = c + a.pairs;
    for (int h = 0; h < a.heads; ++h, x += a.x_head, y += a.y_head) {
      Store(ToF32(x[channel]), y + channel);
    }
    return;
  }
  const float2 rotation = Rotation(a, channels, c, a.positions[row * a.position_stride]);
  const int at = a.interleaved ? 2 * c : c, other = a.interleaved ? at + 1 : c + a.pairs;
  for (int h = 0; h < a.heads; ++h, x += a.x_head, y += a.y_head) {
    const float first = ToF32(x[at]), second = ToF32(x[other]);
    Store(first * rotation.x - second * rotation.y, y + at);
    Store(second * rotation.x + first * rotation.y, y + other);
  }
}

template <typename X, typename Y>
void LaunchRotary(const RotaryArgs& args, CudaStream& stream) {
  RotateArgs<X, Y> a{};
  a.x = args.x.as<X>();
  a.y = args.y.as<Y>();
  if (args.row_offset != nullptr) a.row_offset = stream.DevicePtr(args.row_offset);
  a.in_place = args.x.data == args.y.data;
  a.positions = stream.DevicePtr(args.positions.as<const int32_t>());
  a.x_row = args.x.stride[0];
  a.x_head = args.x.stride[1];
  a.y_row = args.y.stride[0];
  a.y_head = args.y.stride[1];
  a.position_stride = args.positions.stride[0];
  a.heads = static_cast<int>(args.x.dim[1]);
  a.pairs = static_cast<int>(args.rotary_dim / 2);
  a.interleaved = args.interleaved;
  a.xpos_base = args.xpos_base;
  a.xpos_center = args.xpos_center;
  a.xpos_sign = args.xpos_sign;
  const int64_t passing = a.in_place ? 0 : args.x.dim[2] - args.rotary_dim;
  const unsigned threads = static_cast<unsigned>(a.pairs + passing);
  if (threads == 0) return;
  Launch(stream, dim3(static_cast<unsigned>(args.x.dim[0])), dim3(threads), 0, RotaryKernel<X, Y>,
         a, RotaryChannels(args));
}

}  // namespace

void Rotary(const RotaryArgs& args, CudaStream& stream) {
  if (args.x.dim[0] == 0) return;
  if (args.y.dtype == DType::kF8) return LaunchRotary<float, uint8_t>(args, stream);
  DispatchDType(args.y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    args.x.dtype == args.y.dtype ? LaunchRotary<T, T>(args, stream)
                                 : LaunchRotary<float, T>(args, stream);
  });
}

}  // namespace quintet::cuda
