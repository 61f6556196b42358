// Names of data types as people write them.
#pragma once

#include <string>
#include <string_view>

namespace quintet {

// Returns Quintet's name of a data type: f32 for fp32, float32, float and torch.float32; f16 for
// fp16, float16, half and torch.float16; bf16 for bfloat16 and torch.bfloat16. `name` may have
// upper-case letters. Other names are returned unchanged.
std::string CanonicalDtype(std::string_view name);

}  // namespace quintet
