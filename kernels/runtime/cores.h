// Default number of compute threads.
#pragma once

namespace quintet {

// Returns the number of physical cores on which this process may run: hyper-threads of one core
// count once, CPUs outside the affinity mask do not count, and the CPU quota of the cgroup is an
// upper bound. At least 1.
int AvailableCores();

// The number of threads of a compute pool: AvailableCores(), but at most 8 if the model runs on a
// GPU, where loops on the host are so short that waking more threads takes longer.
int DefaultThreads(bool on_gpu);

}  // namespace quintet
