// QT_CHECK asserts an invariant of Quintet's own code. If the invariant is broken, the process
// prints the expression to stderr (QT_CHECK_EQ and the other comparisons also print both operands)
// and aborts, within one second even if stderr blocks. No user input may trigger a QT_CHECK:
// invalid input is reported as an absl::Status.
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace quintet {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* what,
                                     const std::string& values) {
  // If stderr is a full pipe that nobody reads, fprintf blocks forever. The alarm then aborts the
  // process after one second.
  std::signal(SIGALRM, [](int) { std::abort(); });
  alarm(1);
  std::fprintf(stderr, "%s:%d: check failed: %s%s\n", file, line, what, values.c_str());
  std::abort();
}

template <typename A, typename B>
std::string CheckValues(const A& a, const B& b) {
  std::ostringstream out;
  out << " (" << a << " vs. " << b << ")";
  return out.str();
}

}  // namespace quintet

#define QT_CHECK(condition)                                                       \
  do {                                                                            \
    if (!(condition)) ::quintet::CheckFailed(__FILE__, __LINE__, #condition, ""); \
  } while (0)

#define QT_CHECK_OP(a, op, b)                                       \
  do {                                                              \
    const auto& qt_a = (a);                                         \
    const auto& qt_b = (b);                                         \
    if (!(qt_a op qt_b))                                            \
      ::quintet::CheckFailed(__FILE__, __LINE__, #a " " #op " " #b, \
                             ::quintet::CheckValues(qt_a, qt_b));   \
  } while (0)

#define QT_CHECK_EQ(a, b) QT_CHECK_OP(a, ==, b)
#define QT_CHECK_LE(a, b) QT_CHECK_OP(a, <=, b)
#define QT_CHECK_LT(a, b) QT_CHECK_OP(a, <, b)
#define QT_CHECK_GE(a, b) QT_CHECK_OP(a, >=, b)
#define QT_CHECK_GT(a, b) QT_CHECK_OP(a, >, b)
