// The cores of the machine: how many compute threads are useful, and where they run.
#pragma once

#include <vector>

namespace quintet {

// Returns the number of physical cores on which this process may run: hyper-threads of one core
// count once, CPUs outside the affinity mask do not count, and the CPU quota of the cgroup is an
// upper bound. At least 1.
int AvailableCores();

// Returns the default number of threads of a compute pool: AvailableCores() for a model on the CPU;
// half of that, at most 8, for a model on a GPU. With a GPU the loops on the host are so short that
// waking more threads would take longer than it saves, and other threads of the process (gRPC, or
// the input and output of a batch job) need the remaining cores.
int DefaultThreads(bool on_gpu);

// Returns the CPUs of part `part` of `parts`: the CPUs on which this process may run, divided into
// ranges of consecutive numbers of about the same size. If there are fewer CPUs than parts, every
// part has all of them.
std::vector<int> CpusOfPart(int part, int parts);
// Restricts the calling thread, and threads that it starts later, to these CPUs.
void RunOnCpus(const std::vector<int>& cpus);

}  // namespace quintet
