#include "kernels/runtime/cpu_features.h"

#include "hwy/targets.h"
#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("CpuIsaName does not change the instruction set limit", "[cpu_features]") {
  for (CpuIsa isa : {CpuIsa::kBaseline, CpuIsa::kAvx2, CpuIsa::kBest}) {
    SetCpuIsaForTest(isa);
    const size_t chosen = hwy::GetChosenTarget().GetIndex();
    CpuIsaName();
    CHECK(hwy::GetChosenTarget().GetIndex() == chosen);
  }
  SetCpuIsaForTest(CpuIsa::kBest);
}

}  // namespace
}  // namespace quintet
