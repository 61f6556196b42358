// A TestBackend is a backend configuration under test: the CPU with a given instruction set and
// number of threads, or a GPU. A test body is written once against TestBackend. The test program
// links either test_backends_cpu.cc or test_backends_gpu.cc, which define its backends.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/stream.h"

namespace quintet {

// All memory that a TestBackend returns stays valid until the TestBackend is destroyed. Not
// thread-safe.
class TestBackend {
 public:
  virtual ~TestBackend() = default;

  virtual Stream& stream() = 0;
  // The device for weights; null on the CPU.
  Device* device() { return stream().backend() == Backend::kCpu ? nullptr : &stream().device(); }
  // The dtypes that activations may have on this backend; f32 is first.
  virtual std::span<const DType> float_types() const = 0;

  // Copies `values`, rounded to a float dtype, to memory that ops can read, and returns a dense
  // view [dims] of the first elements. `values` may be longer than the view, so that a test can
  // then set other strides.
  Tensor Put(const std::vector<float>& values, std::initializer_list<int64_t> dims,
             DType dtype = DType::kF32);
  // Like Put, but copies `count` bytes, which are elements of `dtype`, without conversion.
  Tensor PutBytes(const void* bytes, int64_t count, DType dtype,
                  std::initializer_list<int64_t> dims);
  // Copies ids, positions and other small index arrays to a pinned host buffer and to the device
  // buffer that belongs to it (kernels/runtime/stream.h). Returns the host buffer.
  Tensor Put(const std::vector<int32_t>& values, std::initializer_list<int64_t> dims);
  template <typename T>
  std::span<const T> Plan(const std::vector<T>& values) {
    return {static_cast<const T*>(PutPlan(values.data(), Bytes(values))), values.size()};
  }
  // Memory for an output, filled with NaN, or with bytes 0x55 for integer dtypes.
  Tensor Poisoned(DType dtype, std::initializer_list<int64_t> dims);
  // Scratch memory of an op, filled like Poisoned. An undefined tensor (Tensor::defined() is false)
  // if `bytes` is 0.
  Tensor Scratch(int64_t bytes);

  // Waits for the stream and returns the elements of a view in row-major order. Fails the test if
  // an op failed on the device.
  std::vector<float> Floats(const Tensor& t);
  std::vector<int32_t> Ints(const Tensor& t);

 protected:
  virtual void* Allocate(int64_t bytes) = 0;
  virtual const void* PutPlan(const void* data, int64_t bytes) = 0;
  virtual void CopyIn(void* backend, const void* host, int64_t bytes) = 0;
  virtual void CopyOut(void* host, const void* backend, int64_t bytes) = 0;  // waits

 private:
  template <typename T>
  static int64_t Bytes(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size() * sizeof(T));
  }
  std::vector<char> Elements(const Tensor& t);
};

// Calls `body` with each backend of this test program.
void ForEachBackend(absl::FunctionRef<void(TestBackend&)> body);

// QUINTET_BRIEF_TESTS=1 in the environment selects fewer and smaller problems that still reach
// every kernel, tile and branch. Under compute-sanitizer each of the full problems takes minutes.
bool Brief();
template <typename T>
T Pick(const T& whole, const T& brief) {
  return Brief() ? brief : whole;
}
template <typename T>
std::vector<T> Pick(std::initializer_list<T> whole, std::initializer_list<T> brief) {
  return Brief() ? brief : whole;
}

// Returns `values` rounded to a float dtype; references must start from these values.
std::vector<float> RoundedTo(DType dtype, std::vector<float> values);
// The maximum relative error of rounding to a float dtype.
double RoundingError(DType dtype);

}  // namespace quintet
