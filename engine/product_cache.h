// The file that keeps how products were measured to run quickest (kernels/product_choices.h), one
// for each kind of device, in a directory shared by all processes of a user.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/product_choices.h"

namespace quintet {

// $QUINTET_CACHE_DIR ("none": empty), or $XDG_CACHE_HOME/quintet, or $HOME/.cache/quintet; empty
// where none is set.
std::string CacheDirectory();

// Adds what the directory has for this kind of device (DeviceKind) to `choices`. OK where it has
// nothing, or where `directory` is empty. DATA_LOSS: the file is damaged; nothing is taken, and the
// next Save replaces it. UNAVAILABLE: it cannot be read, or is no plain file.
absl::Status LoadProductChoices(const std::string& directory, const std::string& kind,
                                ProductChoices* choices);

// Writes the choices, if some are new, with what the directory has by now of other shapes, so that
// the file is the old one or whole at any moment. Of two processes that write at once the last
// wins. UNAVAILABLE: it cannot be written.
absl::Status SaveProductChoices(const std::string& directory, const std::string& kind,
                                const ProductChoices& choices);

}  // namespace quintet
