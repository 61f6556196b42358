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

  // Returns the functions of cuBLASLt, or null if the library for this build's CUDA version cannot
  // be loaded. The library is searched for first in the folder that the environment variable
  // QUINTET_CUBLAS_DIR names (the Python package sets it to the library folder of the nvidia-cublas
  // wheel), then in the system's folders, then in /usr/local/cuda/lib64. Thread safe.
  static const CublasLt* Get();
};

}  // namespace quintet::cuda
