#include "models/checkpoint/dtype_names.h"

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("Data types have the names that people know them by") {
  for (const char* name : {"f32", "fp32", "float32", "float", "torch.float32", "FP32"}) {
    CHECK(CanonicalDtype(name) == "f32");
  }
  for (const char* name : {"f16", "fp16", "float16", "half", "torch.half"}) {
    CHECK(CanonicalDtype(name) == "f16");
  }
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16", "BFloat16"}) {
    CHECK(CanonicalDtype(name) == "bf16");
  }
  for (const char* name : {"auto", "int8", "fp8", "f64", "source", "", "torch."}) {
    CHECK(CanonicalDtype(name) == name);
  }
}

}  // namespace
}  // namespace quintet
