#include "server/tracer.h"

#include <cmath>
#include <cstring>

#include "absl/random/random.h"

namespace quintet {
namespace {

// Fills `id` with random bytes that are not all 0.
template <typename Id>
Id RandomId() {
  thread_local absl::InsecureBitGen random;
  Id id;
  do {
    for (size_t at = 0; at < id.size(); at += sizeof(uint64_t)) {
      const uint64_t bits = absl::Uniform<uint64_t>(random);
      std::memcpy(id.data() + at, &bits, sizeof(bits));
    }
  } while (id == Id{});
  return id;
}

}  // namespace

bool InSample(const TraceId& id, double ratio) {
  // The last 7 bytes are the random ones of the specification; as in OpenTelemetry's other
  // languages, the last 8 decide.
  uint64_t value = 0;
  for (size_t i = 8; i < id.size(); ++i) value = value << 8 | id[i];
  return ratio >= 1 || static_cast<double>(value >> 1) < ratio * std::ldexp(1.0, 63);
}

StartedSpan Tracer::Start(const TraceContext& parent, bool remote) const {
  StartedSpan span;
  if (parent.valid()) {
    span.context = parent;
    span.parent = parent.span_id;
    span.remote_parent = remote;
  } else {
    span.context.trace_id = RandomId<TraceId>();
    span.context.flags = TraceContext::kRandom;
  }
  span.context.span_id = NewSpanId();
  span.recorded = parent.valid() && sampler_.parent_based
                      ? parent.sampled()
                      : InSample(span.context.trace_id, sampler_.ratio);
  span.context.flags = static_cast<uint8_t>((span.context.flags & TraceContext::kRandom) |
                                            (span.recorded ? TraceContext::kSampled : 0));
  return span;
}

StartedSpan StartSpan(const Tracer* tracer, const TraceContext& parent, bool remote) {
  if (tracer != nullptr) return tracer->Start(parent, remote);
  StartedSpan span;
  span.context = parent;
  return span;
}

SpanId NewSpanId() { return RandomId<SpanId>(); }

}  // namespace quintet
