// The settings of tracing: OpenTelemetry's environment variables.
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/span_exporter.h"
#include "server/tracer.h"

namespace quintet {

struct TracingOptions {
  SamplerOptions sampler;
  SpanExporter::Options exporter;
};

// Returns the value of an environment variable, or null.
using ReadVariable = std::function<const char*(const char* name)>;

// Returns nullopt, which means that requests are not traced, unless OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set. INVALID_ARGUMENT: a variable has a value that is not
// supported; the message names the variable. `version`: that of this program.
absl::StatusOr<std::optional<TracingOptions>> ReadTracingOptions(const ReadVariable& read,
                                                                 const std::string& version);

// Returns the tracer of `options`; null if they are unset. INVALID_ARGUMENT: the CA file of the
// collector cannot be used.
absl::StatusOr<std::unique_ptr<Tracer>> MakeTracer(const std::optional<TracingOptions>& options);

}  // namespace quintet
