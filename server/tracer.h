// Decides which requests are traced, and gives their spans ids. Finished spans go to the exporter.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "server/span.h"
#include "server/span_exporter.h"
#include "server/trace_context.h"

namespace quintet {

// Which traces are recorded, as OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say.
struct SamplerOptions {
  bool parent_based = true;  // a request that belongs to a trace is recorded if its caller is
  double ratio = 1;          // fraction of the other traces that is recorded, in [0, 1]
};

// Whether the trace `id` is one of the fraction `ratio` of all traces. Depends on the id alone, so
// that all services of a trace decide equally.
bool InSample(const TraceId& id, double ratio);

// A span that has begun.
struct StartedSpan {
  TraceContext context;
  SpanId parent{};
  bool remote_parent = false;
  bool recorded = false;  // to be exported
};

// Thread-safe.
class Tracer {
 public:
  Tracer(const SamplerOptions& sampler, std::unique_ptr<SpanExporter> exporter)
      : sampler_(sampler), exporter_(std::move(exporter)) {}

  // Begins a span below `parent`; if that is not valid(), a trace of its own. `remote`: the parent
  // is a span of another process. Throws std::bad_alloc.
  StartedSpan Start(const TraceContext& parent, bool remote) const;
  SpanExporter& exporter() const { return *exporter_; }

 private:
  const SamplerOptions sampler_;
  const std::unique_ptr<SpanExporter> exporter_;
};

// Tracer::Start. Without a tracer (null) the span is not recorded and has the context of `parent`,
// whose trace id is still logged.
StartedSpan StartSpan(const Tracer* tracer, const TraceContext& parent, bool remote);

SpanId NewSpanId();

}  // namespace quintet
