// Metrics in Prometheus' text format 0.0.4, to the byte as prometheus-cpp's TextSerializer writes
// them. That one formats every number through a stream, which was most of what an answer cost.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "prometheus/metric_family.h"

namespace quintet {

// QT_CHECK: counters, gauges and histograms only.
std::string MetricsText(absl::Span<const prometheus::MetricFamily> families);

}  // namespace quintet
