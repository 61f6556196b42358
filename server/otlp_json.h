// The JSON encoding of OTLP, OpenTelemetry's protocol, for spans (ExportTraceServiceRequest and
// ExportTraceServiceResponse). https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/span.h"

namespace quintet {

// Names and values, such as {"service.name", "quintet"}.
using ResourceAttributes = std::vector<std::pair<std::string, std::string>>;

// Returns the body of a request that exports `spans` of the process that `resource` describes.
std::string OtlpRequest(const ResourceAttributes& resource, std::span<const Span> spans);

// Returns the number of spans that the collector has rejected according to the body of its
// response; 0 if the body is not such a response.
int64_t OtlpRejectedSpans(absl::string_view body);

}  // namespace quintet
