#include "server/metrics_text.h"

#include <cmath>
#include <limits>

#include "prometheus/text_serializer.h"
#include "tests/catch.h"

namespace quintet {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const double kNumbers[] = {0.0,
                           -0.0,
                           1.0,
                           -1.0,
                           42.0,
                           0.1,
                           0.1 + 0.2,
                           0.005,
                           1.0 / 3,
                           1e-7,
                           5e-324,
                           1e15 - 1,
                           1e15,
                           1e16,
                           1e300,
                           123456.789,
                           -2.5,
                           2e15,
                           kInfinity,
                           -kInfinity,
                           std::nan(""),
                           999999999999999.9,
                           9007199254740993.0,
                           1e21};

TEST_CASE("The text equals that of prometheus-cpp byte for byte", "[metrics]") {
  std::vector<MetricFamily> families;
  const std::vector<std::vector<ClientMetric::Label>> labels = {
      {}, {{"model", "g2p"}}, {{"model", "a\\b\"c\nd"}, {"code", ""}, {"x", "\xc3\xa9"}}};
  for (const MetricType type : {MetricType::Counter, MetricType::Gauge}) {
    MetricFamily family{"some_name", type == MetricType::Gauge ? "" : "What it is.", type, {}};
    for (const double number : kNumbers) {
      ClientMetric metric;
      metric.label = labels[family.metric.size() % labels.size()];
      (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = number;
      family.metric.push_back(metric);
    }
    families.push_back(family);
  }
  MetricFamily histograms{"times_seconds", "Times.", MetricType::Histogram, {}};
  for (const bool open : {false, true}) {
    for (const auto& some : labels) {
      ClientMetric metric;
      metric.label = some;
      metric.histogram.sample_count = 7;
      metric.histogram.sample_sum = 0.7;
      metric.histogram.bucket = {{1, 0.001}, {2, 0.1}, {5, 1.0}, {6, 120.0}};
      if (!open) metric.histogram.bucket.push_back({7, kInfinity});
      histograms.metric.push_back(metric);
    }
  }
  families.push_back(histograms);
  families.push_back({"empty", "No series.", MetricType::Histogram, {}});
  CHECK(MetricsText(families) == prometheus::TextSerializer().Serialize(families));
  CHECK(MetricsText({}).empty());
}

}  // namespace
}  // namespace quintet
