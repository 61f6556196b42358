#include "kernels/runtime/cuda_stream.h"

#include <cstdarg>
#include <cstdio>

namespace quintet {

void CudaStream::Fail(const char* format, ...) {
  char error[512];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(error, sizeof(error), format, values);
  va_end(values);
  RecordError(error);
}

}  // namespace quintet
