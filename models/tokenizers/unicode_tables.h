// Packed Unicode data: base64 of variable-length integers. Use unicode.h to read it.
#pragma once

namespace quintet {

extern const char kCategoryRuns[];
extern const char kFlagRuns[];
extern const char kGraphemeRuns[];
extern const char kCombiningRuns[];
extern const char kCanonicalMappings[];
extern const char kCompatibilityMappings[];
extern const char kLowercaseMappings[];
extern const char kCompositions[];

}  // namespace quintet
