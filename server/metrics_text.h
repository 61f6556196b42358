// Formats metrics in the Prometheus text format 0.0.4. The output is byte-identical to that of
// TextSerializer in prometheus-cpp, which is slower: it formats every number through a stream, and
// that took most of the time of a scrape.
#pragma once

#include <span>
#include <string>

#include "prometheus/metric_family.h"

namespace quintet {

// Returns the text of all metric families. Aborts (QT_CHECK) unless each of them is a counter, a
// gauge or a histogram.
std::string MetricsText(std::span<const prometheus::MetricFamily> families);

}  // namespace quintet
