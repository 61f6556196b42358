// Fuzz target: the headers traceparent and tracestate of a client. Each line is one header; the
// lines that begin with 't' are tracestates. A context that is accepted must conform: its ids are
// those in the header, and its tracestate is accepted again unchanged.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "kernels/base/check.h"
#include "server/trace_context.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using quintet::HexText;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<absl::string_view> parents, states;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty()) continue;
    (line[0] == 't' ? states : parents).push_back(line.substr(1));
  }
  const quintet::TraceContext context = quintet::ParseTraceContext(parents, states);
  if (!context.valid()) {
    QT_CHECK(context.state.empty());
    return 0;
  }
  QT_CHECK_EQ(parents.size(), size_t{1});
  const std::string parent(parents[0]);
  QT_CHECK(parent.find(HexText(context.trace_id)) != std::string::npos);
  QT_CHECK(parent.find(HexText(context.span_id)) != std::string::npos);
  QT_CHECK(context.state.size() <= quintet::kMaxTraceState);
  const absl::string_view state = context.state;
  QT_CHECK(quintet::ParseTraceContext(parents, {&state, 1}).state == context.state);
  return 0;
}
