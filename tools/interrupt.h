// Handling of the signals that would otherwise kill the process.
#pragma once

namespace quintet {

// Must be called first in main. From then on SIGINT, SIGTERM and SIGHUP end the process at once
// with `exit_code`, until a subcommand installs its own handlers; an ignored SIGHUP (nohup) stays
// ignored. Ignores SIGALRM, SIGUSR1, SIGUSR2, SIGPIPE and SIGXFSZ; a write that causes SIGPIPE or
// SIGXFSZ still fails with an error.
void HandleSignals(int exit_code);

// Installs handlers with which the first SIGINT, SIGTERM or SIGHUP only makes Interrupted() return
// true, so that a command can finish cleanly. A second signal ends the process at once.
void WatchForInterrupt();
bool Interrupted();

}  // namespace quintet
