// How many compute threads make sense here.
#pragma once

namespace quintet {

// Physical cores that this process may use: its affinity mask with hyper-threads counted once, cut
// to the CPU quota of its control group. At least 1.
int AvailableCores();

}  // namespace quintet
