// A span: one timed part of a trace, in the terms of OpenTelemetry.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/trace_context.h"

namespace quintet {

// The key is a literal. Values are never text of inputs or outputs.
struct SpanAttribute {
  const char* key;
  std::variant<std::string, int64_t, double, std::vector<std::string>> value;
};

enum class SpanKind : uint8_t { kInternal = 1, kServer = 2 };  // numbers of OTLP

struct Span {
  TraceContext context;        // its span_id is that of this span
  SpanId parent{};             // all bytes 0: the span is the root of its trace
  bool remote_parent = false;  // the parent is a span of another process
  SpanKind kind = SpanKind::kInternal;
  std::string name;
  int64_t start_us = 0, end_us = 0;  // since 1970
  bool failed = false;
  std::string failure;  // reason of the failure, of a fixed set
  std::vector<SpanAttribute> attributes;
};

}  // namespace quintet
