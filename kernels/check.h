// QT_CHECK: an invariant of our own code. When it is broken, QT_CHECK prints both values and
// aborts, within a second even if standard error is blocked. No user input may reach it: bad input
// is an absl::Status instead.
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
  // A full pipe that nobody reads blocks the write: it must not keep a broken process alive.
  std::signal(SIGALRM, [](int) { std::abort(); });
  alarm(1);
  std::fprintf(stderr, "%s:%d: check failed: %s%s\n", file, line, what, values.c_str());
  std::abort();
}

template <typename A, typename B>
std::string CheckValues(const A& a, const B& b) {
  std::ostringstream out;
  out << " (" << a << " against " << b << ")";
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
