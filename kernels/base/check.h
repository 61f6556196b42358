// QT_CHECK asserts an invariant of Quintet's own code. If the invariant is broken, the process
// prints the expression to stderr (QT_CHECK_EQ and the other comparisons also print both operands)
// and aborts, within one second even if stderr blocks. No user input may trigger a QT_CHECK:
// invalid input is reported as an absl::Status.
//
// Almost every file includes this header, the CUDA sources three times (once for each pass of
// nvcc); so it includes nothing that is slow to compile.
#pragma once

namespace quintet {

// An operand of a comparison: any integer converts to it.
class CheckOperand {
 public:
  CheckOperand(long long value)
      : negative_(value < 0), bits_(static_cast<unsigned long long>(value)) {}
  CheckOperand(unsigned long long value) : negative_(false), bits_(value) {}
  CheckOperand(int value) : CheckOperand(static_cast<long long>(value)) {}
  CheckOperand(long value) : CheckOperand(static_cast<long long>(value)) {}
  CheckOperand(unsigned value) : CheckOperand(static_cast<unsigned long long>(value)) {}
  CheckOperand(unsigned long value) : CheckOperand(static_cast<unsigned long long>(value)) {}

  bool negative() const { return negative_; }
  unsigned long long bits() const { return bits_; }  // in two's complement

 private:
  bool negative_;
  unsigned long long bits_;
};

[[noreturn]] void CheckFailed(const char* file, int line, const char* what);
[[noreturn]] void CheckFailed(const char* file, int line, const char* what, CheckOperand a,
                              CheckOperand b);

}  // namespace quintet

#define QT_CHECK(condition)                                                   \
  do {                                                                        \
    if (!(condition)) ::quintet::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (0)

#define QT_CHECK_OP(a, op, b)                                                    \
  do {                                                                           \
    const auto qt_a = (a);                                                       \
    const auto qt_b = (b);                                                       \
    if (!(qt_a op qt_b))                                                         \
      ::quintet::CheckFailed(__FILE__, __LINE__, #a " " #op " " #b, qt_a, qt_b); \
  } while (0)

#define QT_CHECK_EQ(a, b) QT_CHECK_OP(a, ==, b)
#define QT_CHECK_LE(a, b) QT_CHECK_OP(a, <=, b)
#define QT_CHECK_LT(a, b) QT_CHECK_OP(a, <, b)
#define QT_CHECK_GE(a, b) QT_CHECK_OP(a, >=, b)
#define QT_CHECK_GT(a, b) QT_CHECK_OP(a, >, b)
