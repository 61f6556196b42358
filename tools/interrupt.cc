#include "tools/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "tools/exit_code.h"

namespace quintet {
namespace {

volatile sig_atomic_t exit_code_at_start = kExitInterrupted;
volatile sig_atomic_t interrupted = 0;

void EndAtOnce(int) { _exit(exit_code_at_start); }

void SetFlag(int) {
  if (interrupted != 0) _exit(kExitInterrupted);
  interrupted = 1;
}

// Without SA_RESTART, so that a signal interrupts a blocking read.
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

bool Interrupted() { return interrupted != 0; }

}  // namespace quintet
