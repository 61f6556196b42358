#include "server/request_spans.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/clock.h"

namespace quintet {
namespace {

using Attributes = std::vector<SpanAttribute>;

std::string CodeName(int code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// Whether a gRPC status code is an error of the server, not of the client's request.
bool IsServerError(int code) {
  switch (static_cast<absl::StatusCode>(code)) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

const char* OperationName(RequestKind kind) {
  switch (kind) {
    case RequestKind::kGenerate:
      return "text_completion";
    case RequestKind::kEncode:
      return "embeddings";
    case RequestKind::kScore:
      return "score";
    case RequestKind::kClassify:
      return "classify";
  }
  return "";
}

// The names that the conventions use: OpenAI's.
std::string ReasonName(FinishReason reason) {
  if (reason == FinishReason::kEos) return "stop";
  return FinishReasonName(reason);
}

void AddText(const char* key, absl::string_view value, Attributes* to) {
  if (!value.empty()) to->push_back({key, std::string(value)});
}

void AddDecoding(const DecodingOptions& decoding, Attributes* to) {
  to->push_back({"gen_ai.request.max_tokens", int64_t{decoding.max_new_tokens}});
  if (decoding.num_return_sequences > 1) {
    to->push_back({"gen_ai.request.choice.count", int64_t{decoding.num_return_sequences}});
  }
  if (decoding.num_beams > 1) {
    to->push_back({"quintet.request.num_beams", int64_t{decoding.num_beams}});
  }
  if (!decoding.do_sample) return;
  to->push_back({"gen_ai.request.temperature", double{decoding.warp.temperature}});
  to->push_back({"gen_ai.request.top_p", double{decoding.warp.top_p}});
  if (decoding.warp.top_k > 0) {
    to->push_back({"gen_ai.request.top_k", static_cast<double>(decoding.warp.top_k)});
  }
}

void AddEngine(const EndedCall& call, Attributes* to) {
  if (call.engine == nullptr || !call.engine->kind.has_value()) return;
  const EngineTrace& engine = *call.engine;
  AddText("gen_ai.operation.name", OperationName(*engine.kind), to);
  AddText("gen_ai.provider.name", "quintet", to);
  AddText("gen_ai.request.model", call.record.model, to);
  AddText("gen_ai.response.id", call.record.request_id, to);
  to->push_back({"gen_ai.usage.input_tokens", call.record.input_tokens});
  if (*engine.kind != RequestKind::kGenerate) return;
  AddDecoding(engine.decoding, to);
  to->push_back({"gen_ai.usage.output_tokens", call.record.output_tokens});
  std::vector<std::string> reasons;
  for (const FinishReason reason : engine.finish_reasons) {
    reasons.push_back(ReasonName(reason));
  }
  if (!reasons.empty()) to->push_back({"gen_ai.response.finish_reasons", std::move(reasons)});
}

Span SpanOfCall(const EndedCall& call, int64_t epoch_us) {
  Span span;
  span.context = call.span.context;
  span.parent = call.span.parent;
  span.remote_parent = call.span.remote_parent;
  span.start_us = epoch_us + call.arrival_us;
  span.end_us = epoch_us + call.end_us;
  absl::string_view path = call.path;
  if (absl::ConsumePrefix(&path, "/")) {
    span.kind = SpanKind::kServer;
    span.name = std::string(path);
    const size_t slash = path.find('/');
    AddText("rpc.system", "grpc", &span.attributes);
    AddText("rpc.service", path.substr(0, slash), &span.attributes);
    AddText("rpc.method", path.substr(std::min(slash, path.size() - 1) + 1), &span.attributes);
    span.attributes.push_back({"rpc.grpc.status_code", int64_t{call.record.code}});
  } else {
    span.name = std::string(call.record.method);
  }
  AddText("quintet.error.reason", call.record.reason, &span.attributes);
  if (IsServerError(call.record.code)) {
    span.failed = true;
    span.failure = std::string(call.record.reason);
    AddText("error.type", CodeName(call.record.code), &span.attributes);
  }
  AddEngine(call, &span.attributes);
  return span;
}

}  // namespace

void EngineTrace::SetRequests(std::span<const Request> requests) {
  if (requests.empty()) return;
  kind = requests.front().kind;
  if (kind == RequestKind::kGenerate) decoding = requests.front().decoding;
}

void EngineTrace::SetResults(std::span<const Result> results) {
  for (const Result& result : results) {
    const Timing& t = result.timing;
    const int64_t encoded_us = t.queue_us + t.encode_us;
    if (!phases.has_value()) phases = {t.queue_us, t.queue_us, encoded_us, 0, 0};
    phases->queue_end_us = std::max(phases->queue_end_us, t.queue_us);
    phases->encode_begin_us = std::min(phases->encode_begin_us, t.queue_us);
    phases->encode_end_us = std::max(phases->encode_end_us, encoded_us);
    phases->first_token_us = std::max(phases->first_token_us, t.first_token_us);
    phases->end_us = std::max(phases->end_us, t.total_us);
    for (const GeneratedSequence& sequence : result.sequences) {
      finish_reasons.push_back(sequence.finish_reason);
    }
  }
}

std::vector<Span> CallSpans(const EndedCall& call, int64_t epoch_us) {
  std::vector<Span> spans;
  spans.push_back(SpanOfCall(call, epoch_us));
  // Adds the span of a phase, if the call has reached it. Times are those of MonotonicMicros.
  const auto add = [&](const char* name, int64_t start_us, int64_t end_us) {
    Span span;
    span.context = call.span.context;
    span.context.span_id = NewSpanId();
    span.parent = call.span.context.span_id;
    span.name = name;
    span.start_us = epoch_us + start_us;
    span.end_us = epoch_us + end_us;
    spans.push_back(std::move(span));
  };
  if (call.tokenized_us == 0) return spans;
  add("tokenize", call.arrival_us, call.tokenized_us);
  if (!call.submitted) return spans;
  const int64_t since = call.tokenized_us;
  if (call.engine == nullptr || !call.engine->phases.has_value()) {
    add("queue", since, call.started_us > 0 ? call.started_us : call.end_us);
    return spans;
  }
  const EngineTrace::Phases& phases = *call.engine->phases;
  add("queue", since, since + phases.queue_end_us);
  if (phases.encode_end_us > phases.encode_begin_us) {
    add("encode", since + phases.encode_begin_us, since + phases.encode_end_us);
  }
  if (phases.first_token_us > 0) {
    add("prefill", since + phases.encode_end_us, since + phases.first_token_us);
    add("decode", since + phases.first_token_us, since + phases.end_us);
  } else if (call.engine->kind == RequestKind::kScore) {
    add("decode", since + phases.encode_end_us, since + phases.end_us);
  }
  return spans;
}

Span HttpSpan(const EndedHttpRequest& request, int64_t epoch_us) {
  Span span;
  span.context = request.span.context;
  span.parent = request.span.parent;
  span.remote_parent = request.span.remote_parent;
  span.kind = SpanKind::kServer;
  span.name = absl::StrCat(request.method, " ", request.route);
  span.start_us = epoch_us + request.arrival_us;
  span.end_us = epoch_us + request.end_us;
  AddText("http.request.method", request.method, &span.attributes);
  AddText("http.route", request.route, &span.attributes);
  if (request.status != 0) {
    span.attributes.push_back({"http.response.status_code", int64_t{request.status}});
  }
  span.failed = request.status >= 500;
  if (span.failed) AddText("error.type", absl::StrCat(request.status), &span.attributes);
  return span;
}

int64_t MonotonicEpochMicros() {
  const int64_t monotonic_us = MonotonicMicros();
  return absl::ToUnixMicros(absl::Now()) - monotonic_us;
}

}  // namespace quintet
