#include "models/adapter_ranges.h"

#include <algorithm>
#include <span>

namespace quintet {

int32_t CommonAdapter(std::span<const int32_t> adapters) {
  if (adapters.empty()) return -1;
  const bool same = std::all_of(adapters.begin(), adapters.end(),
                                [&](int32_t other) { return other == adapters[0]; });
  return same ? adapters[0] : -1;
}

void DivideByAdapter(std::span<const int32_t> adapters, int64_t min_rows,
                     std::vector<AdapterRange>* ranges) {
  ranges->clear();
  for (auto begin = adapters.begin(); begin != adapters.end();) {
    const auto end =
        std::find_if(begin, adapters.end(), [begin](int32_t other) { return other != *begin; });
    AdapterRange range = {begin - adapters.begin(), end - adapters.begin(), *begin};
    if (end - begin < min_rows) range.adapter = AdapterRange::kMixed;
    const bool extends = range.adapter == AdapterRange::kMixed && !ranges->empty() &&
                         ranges->back().adapter == AdapterRange::kMixed;
    if (extends) {
      ranges->back().end = range.end;
    } else {
      ranges->push_back(range);
    }
    begin = end;
  }
  if (ranges->size() == 1 && ranges->front().adapter == AdapterRange::kMixed) ranges->clear();
}

}  // namespace quintet
