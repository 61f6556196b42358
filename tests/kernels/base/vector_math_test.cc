// This file is compiled once per instruction set, like the CPU kernels.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/base/vector_math_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/base/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

float ExpNegativeOf(float x) { return hn::GetLane(ExpNegative(hn::Set(F32(), x))); }
float MaxOfValues(const float* x, size_t n) { return MaxOf(x, n); }

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"

namespace quintet::cpu {
namespace {

HWY_EXPORT(ExpNegativeOf);
HWY_EXPORT(MaxOfValues);

TEST_CASE("ExpNegative is within 1.5 ulp", "[vector_math]") {
  ForEachIsa([] {
    double worst = 0;
    for (float x = 0.0f; x > -87.0f; x -= 0.00037f) {
      const double exact = std::exp(double{x});
      const double unit = std::ldexp(1.0, std::ilogb(exact) - 23);
      worst = std::max(worst, std::abs(HWY_DYNAMIC_DISPATCH(ExpNegativeOf)(x) - exact) / unit);
    }
    CHECK(worst < 1.5);
  });
}

TEST_CASE("ExpNegative is 1 at 0, 0 below the underflow limit, and NaN for NaN", "[vector_math]") {
  ForEachIsa([] {
    CHECK(HWY_DYNAMIC_DISPATCH(ExpNegativeOf)(0.0f) == 1.0f);
    CHECK(HWY_DYNAMIC_DISPATCH(ExpNegativeOf)(-0.0f) == 1.0f);
    CHECK(HWY_DYNAMIC_DISPATCH(ExpNegativeOf)(-87.0f) > 0.0f);
    for (float x : {-87.01f, -104.0f, -1e30f, -INFINITY}) {
      CHECK(HWY_DYNAMIC_DISPATCH(ExpNegativeOf)(x) == 0.0f);
    }
    CHECK(std::isnan(HWY_DYNAMIC_DISPATCH(ExpNegativeOf)(NAN)));
  });
}

TEST_CASE("MaxOf ignores NaN at every position", "[vector_math]") {
  ForEachIsa([] {
    for (size_t n : {1, 15, 16, 17, 64, 100}) {
      for (size_t at = 0; at < n; ++at) {
        std::vector<float> x(n, NAN);
        CHECK(HWY_DYNAMIC_DISPATCH(MaxOfValues)(x.data(), n) == -INFINITY);
        x[at] = -3.0f;
        CHECK(HWY_DYNAMIC_DISPATCH(MaxOfValues)(x.data(), n) == -3.0f);
      }
    }
  });
}

}  // namespace
}  // namespace quintet::cpu
#endif
