// Compares the weights of two loaded models bit by bit.
#pragma once

#include <string>

#include "models/weights/weights.h"

namespace quintet {

// Returns the name of the first parameter with different bits, or an empty string. Embeddings may
// have different types if their values are equal.
std::string DifferenceOfWeights(const ModelWeights& a, const ModelWeights& b);

}  // namespace quintet
