// How cuBLASLt multiplies each shape of bf16 or f16: descriptors and the chosen algorithm. The
// algorithm is the one that was measured to be the quickest on such a device (measured_products.h),
// or else the first of the library's own ranking.
//
// Asking for a plan takes longer than most products, and inputs of mixed lengths give every batch
// another number of rows: numbers within an eighth of each other share the plan of the largest, and
// algorithms that take all of them come first. One engine thread.
//
// Versions, on an H200, bf16, a decoder's step (bench_steps_gpu): 1, the library's first algorithm:
// T5-base 64 rows 706 us, 128 rows 875; Flan-T5-XL 64 rows 2,636 us. 2, the measured one: predicted
// 3 % less; 704, 879 and 2,600. T5-base's encoder, 128 x 128 tokens: 6.31 ms, then 5.90 to 6.17.
#pragma once

#include <map>
#include <vector>

#include "kernels/cublas_lt.cuh"
#include "kernels/device_cuda.h"
#include "kernels/linear_product.cuh"
#include "kernels/product_choices.h"

namespace quintet::cuda {

class ProductPlans {
 public:
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what cuBLASLt asks for on Hopper

  ProductPlans();
  ~ProductPlans();
  ProductPlans(const ProductPlans&) = delete;
  ProductPlans& operator=(const ProductPlans&) = delete;

  // False when cuBLASLt has no algorithm for this product.
  bool Run(const Product& p, Stream& stream);

 private:
  // Row-major y [rows, n] is column-major [n, rows]: A is W, transposed, and B is x.
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm;
    bool usable = false;
    int64_t rows = 0;  // that the layouts are for now

    void Destroy(const CublasLt& lt);
  };
  // A type with a name: std::vector of the library's nameless struct makes nvcc 13.0 fail.
  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
  };
  using Key = ProductChoices::Key;

  static Key KeyOf(const Product& p, int64_t rows);
  Plan Make(const Product& p, int64_t rows, Stream& stream);
  bool Describe(const Product& p, Plan* plan) const;
  // The library's own ranking; empty where it has nothing for this product.
  std::vector<Candidate> Candidates(const Product& p, const Plan& plan) const;
  // Those that also take the fewest rows that share this plan; all, where none does.
  void KeepShared(const Plan& plan, std::vector<Candidate>* candidates) const;
  // Leaves the choice in plan->algorithm and, while products are measured, with the device's
  // choices.
  void Choose(const Product& p, const std::vector<Candidate>& candidates, Plan* plan,
              Stream& stream);
  int Quickest(const Product& p, const std::vector<Candidate>& candidates, Plan* plan,
               Stream& stream);
  float MedianUs(const Product& p, Plan* plan, Stream& stream);
  Plan& Find(const Product& p, int64_t rows, Stream& stream);
  cublasStatus_t Multiply(const Product& p, Plan* plan, Stream& stream);

  const CublasLt* lt_;  // opening the device has loaded it
  cublasLtHandle_t handle_ = nullptr;
  cublasStatus_t status_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;  // of measurements
  std::map<Key, Plan> plans_;
};

}  // namespace quintet::cuda
