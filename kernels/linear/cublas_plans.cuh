// cuBLASLt plans: the descriptors and the algorithm for each shape of a bf16 or f16 GEMM. A plan
// uses, in this order of preference:
// 1. the algorithm that was measured to be the fastest on this kind of device
//    (linear/gemm_tuning.h);
// 2. the algorithm of an existing plan of the same GEMM with more rows, because loading another
//    kernel from the library takes milliseconds;
// 3. the first algorithm of the library's heuristic ranking.
//
// Creating a plan takes longer than most GEMMs, and with inputs of mixed lengths every batch has a
// different number of rows. Row counts within an eighth of each other therefore share one plan,
// made for the largest of them, and algorithms that support all of them are preferred. Only the
// engine thread may use CublasLtPlans. Measurements: linear/NOTES.md.
#pragma once

#include <map>
#include <thread>
#include <vector>

#include "kernels/linear/cublas_lt.cuh"
#include "kernels/linear/gemm.cuh"
#include "kernels/linear/gemm_choices.h"
#include "kernels/runtime/device_cuda.h"

namespace quintet::cuda {

class CublasLtPlans {
 public:
  // Prepares cuBLASLt for the CUDA device `ordinal` on another thread, because its first choice of
  // an algorithm takes 70 ms. The first Run waits for that thread.
  explicit CublasLtPlans(int ordinal);
  ~CublasLtPlans();
  CublasLtPlans(const CublasLtPlans&) = delete;
  CublasLtPlans& operator=(const CublasLtPlans&) = delete;

  // Enqueues the GEMM. Returns false if cuBLASLt has no algorithm for it.
  bool Run(const Gemm& p, CudaStream& stream);

 private:
  // The descriptors and the algorithm of one GEMM. cuBLASLt is column-major, so it sees our
  // row-major matrices transposed: its D [n, rows] is y [rows, n], its B [k, rows] is x [rows, k],
  // and its A [k, n] is W [n, k]. It computes D = A^T B.
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm;
    bool usable = false;
    int64_t rows = 0;  // number of rows in the layouts at present

    void Destroy(const CublasLt& lt);
  };
  // Wraps cublasLtMatmulAlgo_t, because nvcc 13.0 fails to compile a std::vector of that type (a
  // typedef of an unnamed struct).
  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
  };
  using Key = GemmAlgorithmChoices::Key;

  void Prepare(int ordinal);
  static Key KeyOf(const Gemm& p, int64_t rows);
  Plan Make(const Gemm& p, int64_t rows, CudaStream& stream);
  bool Adopt(const Key& key, Plan* plan) const;
  bool Describe(const Gemm& p, Plan* plan) const;
  // Returns the algorithms that cuBLASLt's heuristic proposes, best first; none if cuBLASLt does
  // not support this GEMM.
  std::vector<Candidate> Candidates(const Gemm& p, const Plan& plan) const;
  // Several row counts share one plan. Removes the candidates that do not support the smallest of
  // these row counts; if that would remove all candidates, keeps all.
  void KeepShared(const Plan& plan, std::vector<Candidate>* candidates) const;
  // Sets plan->algorithm to the choice that the GemmAlgorithmChoices of the device record for this
  // GEMM, or to the first candidate if there is none. While algorithms are being measured
  // (AutotuneGemms), first records a choice for a GEMM that has none: the fastest candidate, or the
  // first one once the time budget is spent.
  void Choose(const Gemm& p, const std::vector<Candidate>& candidates, Plan* plan,
              CudaStream& stream);
  int Quickest(const Gemm& p, const std::vector<Candidate>& candidates, Plan* plan,
               CudaStream& stream);
  float MedianUs(const Gemm& p, Plan* plan, CudaStream& stream);
  Plan& Find(const Gemm& p, int64_t rows, CudaStream& stream);
  cublasStatus_t Multiply(const Gemm& p, Plan* plan, CudaStream& stream);

  const CublasLt* lt_;   // loaded when the device was opened
  std::thread prepare_;  // sets handle_ and status_
  cublasLtHandle_t handle_ = nullptr;
  cublasStatus_t status_ = CUBLAS_STATUS_NOT_INITIALIZED;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;  // begin and end of a timed GEMM
  std::map<Key, Plan> plans_;
};

}  // namespace quintet::cuda
