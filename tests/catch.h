// Includes Catch2, release 2 or 3. With release 2 it defines the names of release 3 that the tests
// use. Every test includes this header instead of a header of Catch2.
#pragma once

#if __has_include("catch2/catch_test_macros.hpp")
#include "catch2/catch_approx.hpp"
#include "catch2/catch_session.hpp"
#include "catch2/catch_test_macros.hpp"
#include "catch2/generators/catch_generators.hpp"
#include "catch2/matchers/catch_matchers_string.hpp"

using Catch::Approx;
#else
#include "catch2/catch.hpp"

namespace Catch::Matchers {
inline auto ContainsSubstring(const std::string& text) { return Contains(text); }
}  // namespace Catch::Matchers
#endif
