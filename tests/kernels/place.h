// Where an op runs in a test: on the CPU with some instruction set and number of threads, or on a
// GPU. A test body is written once against Place; the program that it is linked into decides which
// places there are (places_cpu.cc, places_gpu.cc).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// Everything handed out lives as long as the place. One thread.
class Place {
 public:
  virtual ~Place() = default;

  virtual Stream& stream() = 0;
  // Where weights go: null on the CPU.
  Device* device() { return stream().backend() == Backend::kCpu ? nullptr : &stream().device(); }
  // What activations may be here: f32 first.
  virtual absl::Span<const DType> float_types() const = 0;

  // A copy of `values`, rounded to a float type, that ops can read: a dense view of its first
  // elements. `values` may be longer than the view, so that a test can set other strides.
  Tensor Put(const std::vector<float>& values, std::initializer_list<int64_t> dims,
             DType dtype = DType::kF32);
  // The same of bytes as they are.
  Tensor PutBytes(const void* bytes, int64_t count, DType dtype,
                  std::initializer_list<int64_t> dims);
  // Ids, positions and other small arrays with which ops plan: memory of the host, with a twin on
  // the device.
  Tensor Put(const std::vector<int32_t>& values, std::initializer_list<int64_t> dims);
  template <typename T>
  absl::Span<const T> Plan(const std::vector<T>& values) {
    return {static_cast<const T*>(PutPlan(values.data(), Bytes(values))), values.size()};
  }
  // Memory for an output: NaN, or 0x55 in every byte of integers.
  Tensor Poisoned(DType dtype, std::initializer_list<int64_t> dims);
  // Scratch of an op, poisoned; undefined when that is 0 bytes.
  Tensor Scratch(int64_t bytes);

  // The elements of a view in row-major order, after all that the stream has been given. Ends the
  // test when an op failed on the device.
  std::vector<float> Floats(const Tensor& t);
  std::vector<int32_t> Ints(const Tensor& t);

 protected:
  virtual void* Allocate(int64_t bytes) = 0;
  virtual const void* PutPlan(const void* data, int64_t bytes) = 0;
  virtual void CopyIn(void* place, const void* host, int64_t bytes) = 0;
  virtual void CopyOut(void* host, const void* place, int64_t bytes) = 0;  // waits

 private:
  template <typename T>
  static int64_t Bytes(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size() * sizeof(T));
  }
  std::vector<char> Elements(const Tensor& t);
};

// Calls `body` at each place of this program in turn.
void ForEachPlace(absl::FunctionRef<void(Place&)> body);

// QUINTET_BRIEF_TESTS=1 in the environment asks for fewer and smaller problems that still reach
// every kernel, tile and branch: under compute-sanitizer the others take minutes each.
bool Brief();
template <typename T>
T Pick(const T& whole, const T& brief) {
  return Brief() ? brief : whole;
}
template <typename T>
std::vector<T> Pick(std::initializer_list<T> whole, std::initializer_list<T> brief) {
  return Brief() ? brief : whole;
}

// `values` as they are after rounding to a float type: what a reference has to start from.
std::vector<float> RoundedTo(DType dtype, std::vector<float> values);
// The greatest error of rounding to a float type, relative to the value.
double RoundingError(DType dtype);

}  // namespace quintet
