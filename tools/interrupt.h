// SIGINT and SIGTERM as a flag, so that a run can end in order. A second signal ends the process at
// once.
#pragma once

namespace quintet {

void WatchForInterrupt();
bool Interrupted();

}  // namespace quintet
