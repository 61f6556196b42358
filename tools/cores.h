// Default number of compute threads.
#pragma once

namespace quintet {

// Number of physical cores available to this process: its affinity mask with hyper-threads counted
// once, limited by the CPU quota of its cgroup. At least 1.
int AvailableCores();

}  // namespace quintet
