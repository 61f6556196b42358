#include "tools/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "tools/exit_code.h"

namespace quintet {
namespace {

// These variables must be lock-free, because signal handlers access them.
std::atomic<int> exit_code_at_start = kExitInterrupted;
std::atomic<bool> interrupted = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void EndAtOnce(int) { _exit(exit_code_at_start); }

void SetFlag(int) {
  if (interrupted.exchange(true)) _exit(kExitInterrupted);
}

// Installs `handler` for SIGINT and SIGTERM, and for SIGHUP unless that signal is ignored.
// SA_RESTART is not set, so that a signal interrupts a blocking read.
void OnInterrupts(void (*handler)(int)) {
  struct sigaction action = {}, hang_up = {};
  action.sa_handler = handler;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

}  // namespace

void HandleSignals(int exit_code) {
  exit_code_at_start = exit_code;
  OnInterrupts(EndAtOnce);
  for (const int ignored : {SIGPIPE, SIGXFSZ, SIGALRM, SIGUSR1, SIGUSR2}) signal(ignored, SIG_IGN);
}

void WatchForInterrupt() { OnInterrupts(SetFlag); }

bool Interrupted() { return interrupted; }

}  // namespace quintet
