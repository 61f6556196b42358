#include "server/metrics_text.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/check.h"

namespace quintet {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Formats like "%.16g", with a fast path for integers, which most values are.
void AppendNumber(double value, std::string* text) {
  constexpr double kWhole = 1e15;  // larger integers may need an exponent
  if (std::isnan(value)) {
    text->append("Nan");
  } else if (std::isinf(value)) {
    text->append(value > 0 ? "+Inf" : "-Inf");
  } else if (value > 0 && value < kWhole && value == std::floor(value)) {
    absl::StrAppend(text, static_cast<int64_t>(value));
  } else {
    char digits[32];
    const auto end =
        std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::general, 16);
    text->append(digits, end.ptr);
  }
}

void AppendEscaped(absl::string_view value, std::string* text) {
  for (const char c : value) {
    if (c == '\n') {
      text->append("\\n");
    } else {
      if (c == '\\' || c == '"') text->push_back('\\');
      text->push_back(c);
    }
  }
}

// Returns the labels in the form {label="value",...} but without the closing brace, or "" if the
// metric has no labels.
std::string OpenLabels(const ClientMetric& metric) {
  std::string text;
  for (const ClientMetric::Label& label : metric.label) {
    absl::StrAppend(&text, text.empty() ? "{" : ",", label.name, "=\"");
    AppendEscaped(label.value, &text);
    text.push_back('"');
  }
  return text;
}

void AppendHistogram(const std::string& name, const ClientMetric& metric, std::string* text) {
  const ClientMetric::Histogram& histogram = metric.histogram;
  const std::string open = OpenLabels(metric), closed = open.empty() ? open : open + "}";
  absl::StrAppend(text, name, "_count", closed, " ", histogram.sample_count, "\n", name, "_sum",
                  closed, " ");
  AppendNumber(histogram.sample_sum, text);
  text->push_back('\n');
  const std::string head = absl::StrCat(name, "_bucket", open, open.empty() ? "{" : ",", "le=\"");
  const auto bucket = [&](double bound, uint64_t count) {
    text->append(head);
    AppendNumber(bound, text);
    absl::StrAppend(text, "\"} ", count, "\n");
  };
  double last = -std::numeric_limits<double>::infinity();
  for (const ClientMetric::Bucket& b : histogram.bucket) {
    bucket(b.upper_bound, b.cumulative_count);
    last = b.upper_bound;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  if (last != infinity) bucket(infinity, histogram.sample_count);
}

void AppendValue(const std::string& name, const ClientMetric& metric, double value,
                 std::string* text) {
  const std::string open = OpenLabels(metric);
  absl::StrAppend(text, name, open, open.empty() ? " " : "} ");
  AppendNumber(value, text);
  text->push_back('\n');
}

}  // namespace

std::string MetricsText(std::span<const MetricFamily> families) {
  std::string text;
  for (const MetricFamily& family : families) {
    const MetricType type = family.type;
    QT_CHECK(type == MetricType::Counter || type == MetricType::Gauge ||
             type == MetricType::Histogram);
    const char* const name_of_type = type == MetricType::Counter ? "counter"
                                     : type == MetricType::Gauge ? "gauge"
                                                                 : "histogram";
    if (!family.help.empty()) {
      absl::StrAppend(&text, "# HELP ", family.name, " ", family.help, "\n");
    }
    absl::StrAppend(&text, "# TYPE ", family.name, " ", name_of_type, "\n");
    for (const ClientMetric& metric : family.metric) {
      if (type == MetricType::Histogram) {
        AppendHistogram(family.name, metric, &text);
      } else {
        const bool counts = type == MetricType::Counter;
        AppendValue(family.name, metric, counts ? metric.counter.value : metric.gauge.value, &text);
      }
    }
  }
  return text;
}

}  // namespace quintet
