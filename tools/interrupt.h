// Signals that end a run, or would end it by accident.
#pragma once

namespace quintet {

// First of all in main. SIGINT, SIGTERM and SIGHUP end the process with `exit_code`, at once, until
// a subcommand handles them itself; SIGHUP stays ignored where it is (nohup). Signals that mean
// nothing here but end a process by default are ignored: SIGPIPE and SIGXFSZ, which also fail the
// write that caused them, SIGALRM, SIGUSR1 and SIGUSR2.
void HandleSignals(int exit_code);

// From here on those three set a flag, so that the run can end in order. A second one ends the
// process at once.
void WatchForInterrupt();
bool Interrupted();

}  // namespace quintet
