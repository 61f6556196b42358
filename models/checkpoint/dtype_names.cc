#include "models/checkpoint/dtype_names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace quintet {

std::string CanonicalDtype(std::string_view name) {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(name.data(), name.size()));
  const absl::string_view plain = absl::StripPrefix(lower, "torch.");
  for (const char* alias : {"f32", "fp32", "float32", "float"}) {
    if (plain == alias) return "f32";
  }
  for (const char* alias : {"f16", "fp16", "float16", "half"}) {
    if (plain == alias) return "f16";
  }
  for (const char* alias : {"bf16", "bfloat16"}) {
    if (plain == alias) return "bf16";
  }
  return std::string(name);
}

}  // namespace quintet
