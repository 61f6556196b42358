// Default number of compute threads.
#pragma once

namespace quintet {

// Returns the number of physical cores on which this process may run: hyper-threads of one core
// count once, CPUs outside the affinity mask do not count, and the CPU quota of the cgroup is an
// upper bound. At least 1.
int AvailableCores();

// Returns the default number of threads of a compute pool: AvailableCores(), but half of them and
// at most 8 if the model runs on a GPU. The loops on the host are then so short that waking more
// threads would take longer than it saves, and the threads of gRPC or of a job's lines need the
// other cores.
int DefaultThreads(bool on_gpu);

}  // namespace quintet
