// The file with the measured GEMM choices (kernels/linear/gemm_choices.h) of one kind of device, in
// a directory that all processes of a user share.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/linear/gemm_choices.h"

namespace quintet {

// Returns the directory of the file with GEMM choices: $QUINTET_CACHE_DIR ("none" turns the cache
// off), else $XDG_CACHE_HOME/quintet, else $HOME/.cache/quintet. Returns "" if there is no cache.
std::string CacheDirectory();

// Adds the stored choices of this kind of device (DeviceKind) to `choices`. Adds nothing and
// returns OK if there is no file or `directory` is "". Returns DATA_LOSS if the file is damaged;
// nothing is added, and the next Save replaces the file. Returns UNAVAILABLE if the file cannot be
// read or is not a regular file.
absl::Status LoadGemmAlgorithmChoices(const std::string& directory, const std::string& kind,
                                      GemmAlgorithmChoices* choices);

// Does nothing unless choices.changed(). Replaces the file atomically by one with `choices` and
// those choices of the old file whose shapes are not in `choices`. If two processes save at once,
// the choices of one may be lost. Returns UNAVAILABLE if the file cannot be written.
absl::Status SaveGemmAlgorithmChoices(const std::string& directory, const std::string& kind,
                                      const GemmAlgorithmChoices& choices);

}  // namespace quintet
