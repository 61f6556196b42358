// cuBLASLt, loaded with dlopen when the first device is opened. It is not linked: a program linked
// with it needs 92 KiB of thread-local storage in the stack of every thread, and libraries that
// create threads with small stacks (100 KiB, for example) then cannot create any.
#pragma once

#include <cublasLt.h>

namespace quintet::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtDestroy) Destroy;
  decltype(&cublasLtMatmul) Matmul;
  decltype(&cublasLtMatmulAlgoCheck) MatmulAlgoCheck;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute;
  decltype(&cublasLtGetStatusString) GetStatusString;
  decltype(&cublasLtGetVersion) GetVersion;

  // The functions of cuBLASLt, or null if the library for this build's CUDA version cannot be
  // loaded: from the folder in the environment variable QUINTET_CUBLAS_DIR (the Python package sets
  // it to that of the nvidia-cublas wheel), the system's folders or /usr/local/cuda/lib64. Thread
  // safe.
  static const CublasLt* Get();
};

}  // namespace quintet::cuda
