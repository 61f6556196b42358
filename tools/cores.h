// Default number of compute threads.
#pragma once

namespace quintet {

// Returns the number of physical cores on which this process may run: hyper-threads of one core
// count once, CPUs outside the affinity mask do not count, and the CPU quota of the cgroup is an
// upper bound. At least 1.
int AvailableCores();

}  // namespace quintet
