#include "tools/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "tools/exit_code.h"

namespace quintet {
namespace {

volatile sig_atomic_t interrupted = 0;

void OnSignal(int) {
  if (interrupted != 0) _exit(kExitInterrupted);
  interrupted = 1;
}

}  // namespace

void WatchForInterrupt() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;  // without SA_RESTART: a waiting read returns
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }

}  // namespace quintet
