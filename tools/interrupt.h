// Handling of signals that end the process by default.
#pragma once

namespace quintet {

// Must be called first in main. SIGINT, SIGTERM and SIGHUP end the process at once with `exit_code`
// until a subcommand installs its own handlers; an ignored SIGHUP (nohup) stays ignored. Ignores
// SIGALRM, SIGUSR1, SIGUSR2, SIGPIPE and SIGXFSZ, which would end the process; the write that
// caused SIGPIPE or SIGXFSZ still fails with an error.
void HandleSignals(int exit_code);

// Installs handlers: SIGINT, SIGTERM and SIGHUP set the flag that Interrupted returns, so that the
// run can end in order. A second signal ends the process at once.
void WatchForInterrupt();
bool Interrupted();

}  // namespace quintet
