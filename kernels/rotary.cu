#include "kernels/cuda.cuh"
#include "kernels/cuda_ops.h"
#include "kernels/rotary_channels.h"

namespace quintet::cuda {
namespace {

template <typename T>
struct RotateArgs {
  T* x;
  const int64_t* row_offset;  // or null
  const int32_t* positions;
  int64_t row_stride, head_stride, position_stride;
  int heads, pairs;
  bool interleaved;
  float xpos_base;  // 0: off
  int64_t xpos_center;
  int xpos_sign;
};

// What: pair (a, b) of channels becomes (a cos - b sin, b cos + a sin) * scale, in place.
// Shapes: x [rows, heads, head_dim], positions [rows].
// Math: f32 from angles to results; theta and zeta come from the host, as on the CPU.
// Map: a block a row, a thread a pair; it turns that pair in every head.
// Bound: x read and written once; only FAT5's rotary models run it.
// Spec: tests/kernels/rotary_test.cc.
template <typename T>
__global__ void RotaryKernel(RotateArgs<T> a, const __grid_constant__ RotaryChannels channels) {
  WaitForInputs();
  const int64_t row = blockIdx.x;
  const int c = static_cast<int>(threadIdx.x);
  const int32_t position = a.positions[row * a.position_stride];
  const float angle = static_cast<float>(position) * channels.theta[c];
  float cosine = cosf(angle), sine = sinf(angle);
  if (a.xpos_base != 0.0f) {
    const float power = static_cast<float>(position - a.xpos_center) / a.xpos_base;
    const float scale = powf(channels.zeta[c], power);
    cosine = a.xpos_sign > 0 ? cosine * scale : cosine / scale;
    sine = a.xpos_sign > 0 ? sine * scale : sine / scale;
  }
  T* x = a.x + (a.row_offset == nullptr ? row * a.row_stride : a.row_offset[row]) +
         c * (a.interleaved ? 2 : 1);
  const int gap = a.interleaved ? 1 : a.pairs;
  for (int h = 0; h < a.heads; ++h, x += a.head_stride) {
    const float first = ToF32(x[0]), second = ToF32(x[gap]);
    x[0] = FromF32<T>(first * cosine - second * sine);
    x[gap] = FromF32<T>(second * cosine + first * sine);
  }
}

}  // namespace

void Rotary(const RotaryArgs& args, Stream& stream) {
  const unsigned rows = static_cast<unsigned>(args.x.dim[0]);
  if (args.rotary_dim == 0 || rows == 0) return;
  DispatchDType(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    RotateArgs<T> a{};
    a.x = args.x.as<T>();
    if (args.row_offset != nullptr) a.row_offset = stream.Twin(args.row_offset);
    a.positions = stream.Twin(args.positions.as<const int32_t>());
    a.row_stride = args.x.stride[0];
    a.head_stride = args.x.stride[1];
    a.position_stride = args.positions.stride[0];
    a.heads = static_cast<int>(args.x.dim[1]);
    a.pairs = static_cast<int>(args.rotary_dim / 2);
    a.interleaved = args.interleaved;
    a.xpos_base = args.xpos_base;
    a.xpos_center = args.xpos_center;
    a.xpos_sign = args.xpos_sign;
    Launch(stream, dim3(rows), dim3(static_cast<unsigned>(a.pairs)), 0, RotaryKernel<T>, a,
           RotaryChannels(args));
  });
}

}  // namespace quintet::cuda
