#include "kernels/base/check.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace quintet {
namespace {

std::string Text(const CheckOperand& operand) {
  return operand.negative() ? std::to_string(static_cast<long long>(operand.bits()))
                            : std::to_string(operand.bits());
}

[[noreturn]] void Abort(const char* file, int line, const char* what, const std::string& operands) {
  // If stderr is a full pipe that nobody reads, fprintf blocks forever. The alarm then aborts the
  // process after one second.
  std::signal(SIGALRM, [](int) { std::abort(); });
  alarm(1);
  std::fprintf(stderr, "%s:%d: check failed: %s%s\n", file, line, what, operands.c_str());
  std::abort();
}

}  // namespace

void CheckFailed(const char* file, int line, const char* what) { Abort(file, line, what, ""); }

void CheckFailed(const char* file, int line, const char* what, CheckOperand a, CheckOperand b) {
  Abort(file, line, what, " (" + Text(a) + " vs. " + Text(b) + ")");
}

}  // namespace quintet
