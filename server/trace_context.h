// W3C Trace Context: the trace that a request belongs to and the span that caused it, as the
// headers traceparent and tracestate (HTTP) or the metadata of these names (gRPC) give them.
// https://www.w3.org/TR/trace-context-2/
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace quintet {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

struct TraceContext {
  // Bits of `flags`: the span is recorded; the last 7 bytes of the trace id are random.
  static constexpr uint8_t kSampled = 1, kRandom = 2;

  TraceId trace_id{};  // all bytes 0: the request belongs to no trace
  SpanId span_id{};
  uint8_t flags = 0;
  std::string state;  // tracestate; empty: none

  bool valid() const { return trace_id != TraceId{} && span_id != SpanId{}; }
  bool sampled() const { return (flags & kSampled) != 0; }
};

// Returns the trace context that a client has sent. `parents` and `states` are the values of all
// its headers traceparent and tracestate. As the specification says, a context that does not
// conform is ignored: the result is then not valid(), and a bad tracestate alone is left out. A
// tracestate of more than kMaxTraceState characters is left out, too.
TraceContext ParseTraceContext(std::span<const absl::string_view> parents,
                               std::span<const absl::string_view> states);
inline constexpr size_t kMaxTraceState = 512;

// Returns the bytes of an id as lowercase hexadecimal digits.
std::string HexText(std::span<const uint8_t> id);

}  // namespace quintet
