#include "kernels/ptx/tma.cuh"

namespace quintet::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looks up cuTensorMapEncodeTiled in the driver library at run time: the CUDA runtime has no such
// function, and Quintet is not linked with the driver library.
Encode FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(function)
             : nullptr;
}

}  // namespace

bool MakeTensorMap(const TmaTensor& rows, int box_rows, CudaStream& stream, CUtensorMap* map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) {
    stream.Fail("the driver has no cuTensorMapEncodeTiled");
    return false;
  }
  constexpr int kBytes = 2;  // per value; TMA only copies bits, so bf16 serves f16, too
  const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  // Stride in bytes of a dimension of size `count`. If `count` is 1, the stride is never used, but
  // TMA still requires a multiple of 16.
  const auto stride = [&](int64_t n, int64_t count) { return size(count > 1 ? n * kBytes : 16); };
  const cuuint64_t dims[] = {size(rows.head_dim), size(rows.heads), size(rows.rows)};
  const cuuint64_t strides[] = {stride(rows.head_stride, rows.heads),
                                stride(rows.row_stride, rows.rows)};
  const cuuint32_t box[] = {64, 1, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t every[] = {1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(rows.data), dims, strides,
             box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return true;
  stream.Fail("cuTensorMapEncodeTiled of [%ld, %ld, %ld]: error %d", rows.rows, rows.heads,
              rows.head_dim, static_cast<int>(result));
  return false;
}

}  // namespace quintet::cuda
