#include "kernels/base/check.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

// Starts a child process, in which an assertion (QT_CHECK_EQ) fails and writes its message to the
// descriptor `standard_error`. Returns the signal that ended the child.
int SignalOfFailure(int standard_error) {
  const pid_t child = fork();
  if (child == 0) {
    // Remove the signal handlers of Catch.
    for (const int signal : {SIGABRT, SIGALRM}) std::signal(signal, SIG_DFL);
    dup2(standard_error, STDERR_FILENO);
    QT_CHECK_EQ(1, 2);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  return WTERMSIG(status);
}

TEST_CASE("A broken invariant is printed and aborts") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(SignalOfFailure(ends[1]) == SIGABRT);
  char text[512] = {};
  REQUIRE(read(ends[0], text, sizeof(text) - 1) > 0);
  CHECK(std::string(text).find("check_test.cc") != std::string::npos);
  CHECK(std::string(text).find("check failed: 1 == 2 (1 vs. 2)") != std::string::npos);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("A broken invariant aborts even if stderr blocks") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  while (write(ends[1], "#", 1) == 1) continue;
  fcntl(ends[1], F_SETFL, 0);
  CHECK(SignalOfFailure(ends[1]) == SIGABRT);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace quintet
