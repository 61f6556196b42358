// Handling of signals that would kill the process by default.
#pragma once

namespace quintet {

// Must be called first in main. From then on SIGINT, SIGTERM and SIGHUP end the process at once
// with `exit_code`, until a subcommand installs its own handlers. If SIGHUP is ignored at the start
// (nohup), it stays ignored. SIGALRM, SIGUSR1, SIGUSR2, SIGPIPE and SIGXFSZ are ignored; a write
// that would raise SIGPIPE or SIGXFSZ fails with an error instead.
void HandleSignals(int exit_code);

// Installs handlers for SIGINT, SIGTERM and SIGHUP. The first signal only makes Interrupted()
// return true, so that a command can finish cleanly; a second signal ends the process at once.
void WatchForInterrupt();
bool Interrupted();

}  // namespace quintet
