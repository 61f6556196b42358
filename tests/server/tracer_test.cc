#include "server/tracer.h"

#include <set>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

TraceContext Caller(uint8_t flags) {
  TraceContext context;
  context.trace_id.fill(0xff);  // the last of all in a sample
  context.span_id.fill(7);
  context.flags = flags;
  context.state = "a=b";
  return context;
}

TEST_CASE("A request of a trace is recorded if its caller is", "[trace]") {
  for (const double ratio : {0.0, 1.0}) {
    const Tracer tracer({.parent_based = true, .ratio = ratio}, nullptr);
    for (const uint8_t flags : {0, 1, 2, 3}) {
      const TraceContext caller = Caller(flags);
      const StartedSpan span = tracer.Start(caller, /*remote=*/true);
      CHECK(span.recorded == caller.sampled());
      CHECK(span.context.flags == flags);
      CHECK(span.context.trace_id == caller.trace_id);
      CHECK(span.context.state == "a=b");
      CHECK(span.parent == caller.span_id);
      CHECK(span.context.span_id != caller.span_id);
      CHECK(span.remote_parent);
    }
    CHECK(tracer.Start({}, true).recorded == (ratio == 1));
  }
}

TEST_CASE("A sampler that ignores the caller decides by the ratio", "[trace]") {
  const Tracer never({.parent_based = false, .ratio = 0}, nullptr);
  const Tracer always({.parent_based = false, .ratio = 1}, nullptr);
  for (const uint8_t flags : {0, 1}) {
    CHECK_FALSE(never.Start(Caller(flags), true).recorded);
    const StartedSpan span = always.Start(Caller(flags), true);
    CHECK(span.recorded);
    CHECK(span.context.sampled());
    CHECK(span.context.trace_id == Caller(0).trace_id);
  }
}

TEST_CASE("A request without a caller begins a trace with ids of its own", "[trace]") {
  const Tracer tracer({}, nullptr);
  std::set<std::string> traces, spans;
  for (int i = 0; i < 1000; ++i) {
    const StartedSpan span = tracer.Start({}, /*remote=*/true);
    CHECK(span.context.valid());
    CHECK(span.recorded);
    CHECK(span.parent == SpanId{});
    CHECK_FALSE(span.remote_parent);
    CHECK(span.context.flags == 3);  // sampled, random
    traces.insert(HexText(span.context.trace_id));
    spans.insert(HexText(span.context.span_id));
  }
  CHECK(traces.size() == 1000);
  CHECK(spans.size() == 1000);
}

TEST_CASE("A sample has the fraction of traces that its ratio says", "[trace]") {
  const Tracer tracer({.ratio = 0.01}, nullptr);
  int recorded = 0;
  for (int i = 0; i < 100'000; ++i) recorded += tracer.Start({}, true).recorded ? 1 : 0;
  // 1000 +- 31.5 (standard deviation)
  CHECK(recorded > 800);
  CHECK(recorded < 1200);
}

TEST_CASE("Whether a trace is in a sample depends on its id alone", "[trace]") {
  TraceId id{};
  CHECK(InSample(id, 0.001));
  CHECK_FALSE(InSample(id, 0));
  id.fill(0xff);
  CHECK(InSample(id, 1));
  CHECK_FALSE(InSample(id, 0.999));
  id[8] = 0x7f;
  CHECK(InSample(id, 0.501));
  CHECK_FALSE(InSample(id, 0.499));
}

TEST_CASE("Without a tracer a span has the trace of its caller and is not recorded", "[trace]") {
  const StartedSpan span = StartSpan(nullptr, Caller(1), true);
  CHECK_FALSE(span.recorded);
  CHECK(span.context.trace_id == Caller(1).trace_id);
  CHECK_FALSE(StartSpan(nullptr, {}, true).context.valid());
}

}  // namespace
}  // namespace quintet
