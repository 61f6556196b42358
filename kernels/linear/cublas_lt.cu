#include "kernels/linear/cublas_lt.cuh"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace quintet::cuda {
namespace {

void* OpenLibrary() {
  const std::string name = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
  std::vector<std::string> places = {name, "/usr/local/cuda/lib64/" + name};
  if (const char* folder = std::getenv("QUINTET_CUBLAS_DIR"); folder != nullptr && *folder != 0) {
    places.insert(places.begin(), folder + ("/" + name));
  }
  for (const std::string& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool FindAll(void* library, CublasLt* lt) {
  return Find(library, "cublasLtCreate", &lt->Create) &&
         Find(library, "cublasLtDestroy", &lt->Destroy) &&
         Find(library, "cublasLtMatmul", &lt->Matmul) &&
         Find(library, "cublasLtMatmulAlgoCheck", &lt->MatmulAlgoCheck) &&
         Find(library, "cublasLtMatmulAlgoGetHeuristic", &lt->MatmulAlgoGetHeuristic) &&
         Find(library, "cublasLtMatmulDescCreate", &lt->MatmulDescCreate) &&
         Find(library, "cublasLtMatmulDescDestroy", &lt->MatmulDescDestroy) &&
         Find(library, "cublasLtMatmulDescSetAttribute", &lt->MatmulDescSetAttribute) &&
         Find(library, "cublasLtMatmulPreferenceCreate", &lt->MatmulPreferenceCreate) &&
         Find(library, "cublasLtMatmulPreferenceDestroy", &lt->MatmulPreferenceDestroy) &&
         Find(library, "cublasLtMatmulPreferenceSetAttribute", &lt->MatmulPreferenceSetAttribute) &&
         Find(library, "cublasLtMatrixLayoutCreate", &lt->MatrixLayoutCreate) &&
         Find(library, "cublasLtMatrixLayoutDestroy", &lt->MatrixLayoutDestroy) &&
         Find(library, "cublasLtMatrixLayoutSetAttribute", &lt->MatrixLayoutSetAttribute) &&
         Find(library, "cublasLtGetStatusString", &lt->GetStatusString) &&
         Find(library, "cublasLtGetVersion", &lt->GetVersion);
}

}  // namespace

const CublasLt* CublasLt::Get() {
  static const CublasLt* const loaded = []() -> const CublasLt* {
    static CublasLt lt;
    void* library = OpenLibrary();
    return library != nullptr && FindAll(library, &lt) ? &lt : nullptr;
  }();
  return loaded;
}

}  // namespace quintet::cuda
