// Whether two loaded models compute with the very same numbers.
#pragma once

#include <string>

#include "models/weights/weights.h"

namespace quintet {

// Names the first parameter that differs in a bit of its value; empty when none does. Embeddings
// may differ in type as long as the values are the same.
std::string DifferenceOfWeights(const ModelWeights& a, const ModelWeights& b);

}  // namespace quintet
