#include "server/api_call.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "engine/clock.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/load_reports.h"
#include "server/message_bytes.h"

namespace quintet {
namespace {

constexpr int kMaxDepth = 16;  // of the JSON of a request
// Upper estimates of memory in bytes, per byte of the JSON of a request (its text, its parsed form
// and the messages made of it) and per byte of a response message (its parsed form and its JSON).
constexpr int64_t kBytesPerRequestByte = 24, kBytesPerResponseByte = 8;

constexpr double kMaxTimeoutSeconds = 1e6;

// Removes the part of an error of the JSON parser that quotes the text: it may be a prompt.
absl::Status WithoutQuote(const absl::Status& status) {
  const absl::string_view message = status.message();
  return absl::Status(status.code(), message.substr(0, message.find("; last read")));
}

}  // namespace

const Method& ApiContext::Find(absl::string_view name) const {
  for (const Method& method : methods) {
    if (absl::EndsWith(method.path, absl::StrCat("/", name))) return method;
  }
  QT_CHECK(false);
  return methods[0];
}

TraceContext TraceContextOf(const HttpRequest& request) {
  const auto values = [&](absl::string_view name) {
    std::vector<absl::string_view> found;
    for (const auto& [key, value] : request.headers) {
      if (absl::EqualsIgnoreCase(key, name)) found.push_back(value);
    }
    return found;
  };
  return ParseTraceContext(values("traceparent"), values("tracestate"));
}

void ApiContext::Refused(absl::string_view path, const TraceId& trace,
                         const absl::Status& status) const {
  const std::string reason = ReasonOf(status);
  calls->refusals->Rejected(reason);
  if (calls->access_log == nullptr) return;
  AccessRecord record;
  record.method = path;
  record.trace_id = trace;
  record.code = static_cast<int>(status.code());
  record.reason = reason;
  calls->access_log->Write(record);
}

void ApiCall::Start() {
  arrival_us_ = MonotonicMicros();
  span_ = StartSpan(context_->calls->tracer, TraceContextOf(exchange_->request()), /*remote=*/true);
  const TaskTraits traits = {.cost_bytes = static_cast<int64_t>(exchange_->request().body.size())};
  context_->calls->preparation->Post(traits, [self = shared_from_this()] { self->Translate(); });
}

void ApiCall::FailUnstarted(const absl::Status& status) {
  context_->Refused(route_->path, span_.context.trace_id, status);
  Fail(ToRpcOutcome(status, request_id_, absl::Milliseconds(200)), 0);
}

void ApiCall::Translate() {
  try {
    if (absl::Status status = ReadRequest(); !status.ok()) return FailUnstarted(status);
    const absl::StatusOr<bool> bound = BindModel();
    if (!bound.ok()) return FailUnstarted(bound.status());
    if (*bound) Run();
  } catch (const std::bad_alloc&) {
    Fail(OutOfMemoryOutcome(), 0);
  }
}

absl::StatusOr<bool> ApiCall::BindModel() {
  if (exchange_->request().method != "POST") return true;
  std::string name;
  if (const auto field = body_->is_object() ? body_->find("model") : body_->end();
      field != body_->end() && field->is_string()) {
    name = field->get<std::string>();
  }
  const CallContext& calls = *context_->calls;
  std::string adapter;  // set by the call itself
  const absl::StatusOr<std::shared_ptr<ServedModel>> model =
      calls.models->FindWithAdapter(name, &adapter);
  if (!model.ok()) return true;  // the translation or the RPC reports it
  absl::StatusOr<std::shared_ptr<ModelHost>> host = (*model)->Acquire();
  if (!host.ok()) return true;
  binding_.model = *model;
  binding_.host = *std::move(host);
  if (binding_.host != nullptr) return true;
  waiting_ = (*model)->admission().TryReserve(1, request_bytes_ / 3);
  if (!waiting_.held()) {
    return absl::ResourceExhaustedError("queue full: too many requests wait for the model to load");
  }
  const int64_t deadline_us =
      arrival_us_ + std::min(timeout_us_.value_or(calls.default_timeout_us), calls.max_timeout_us);
  const uint64_t ticket = binding_.model->Wait(
      deadline_us, [self = shared_from_this()](absl::StatusOr<std::shared_ptr<ModelHost>> version) {
        self->OnHost(std::move(version));
      });
  bool gone;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    wait_ticket_ = ticket;
    gone = finished_;
  }
  if (gone) StopWaiting();
  return false;
}

void ApiCall::StopWaiting() {
  uint64_t ticket;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ticket = std::exchange(wait_ticket_, 0);
  }
  if (ticket != 0) binding_.model->StopWaiting(ticket);
}

void ApiCall::OnHost(absl::StatusOr<std::shared_ptr<ModelHost>> host) {
  try {
    const TaskTraits traits = {.cost_bytes = request_bytes_};
    context_->calls->preparation->Post(
        traits, [self = shared_from_this(), version = std::move(host)]() mutable {
          self->waiting_.Release();
          try {
            if (!version.ok()) return self->FailUnstarted(version.status());
            self->binding_.host = *std::move(version);
            self->Run();
          } catch (const std::bad_alloc&) {
            self->Fail(OutOfMemoryOutcome(), 0);
          }
        });
  } catch (const std::bad_alloc&) {
    Fail(OutOfMemoryOutcome(), 0);
  }
}

void ApiCall::Run() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;  // the client has gone
  }
  absl::StatusOr<std::unique_ptr<Translation>> translation =
      route_->translate({exchange_->request(), *body_, request_id_, *context_->calls, binding_});
  body_.Clear();
  absl::Status status = translation.status();
  if (status.ok()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      translation_ = *std::move(translation);
    }
    status = memory_->Resize(kBytesPerRequestByte * request_bytes_ + translation_->MessageBytes());
    if (status.ok()) status = StartRpcs();
  }
  if (!status.ok()) FailUnstarted(status);
}

absl::Status ApiCall::CheckHeaders() {
  const HttpRequest& request = exchange_->request();
  QT_ASSIGN_OR_RETURN(max_priority_, context_->calls->Authorize(request.Header("authorization")));
  request_id_ = std::string(request.Header("x-request-id").value_or(""));
  if (!IsRequestId(request_id_)) {
    request_id_.clear();
    return absl::InvalidArgumentError(
        "header X-Request-Id: may hold only at most 64 letters, digits, '.', '_' and '-'");
  }
  if (const auto timeout = request.Header("x-request-timeout"); timeout.has_value()) {
    double seconds = 0;
    if (!absl::SimpleAtod(*timeout, &seconds) || !(seconds > 0) || seconds > kMaxTimeoutSeconds) {
      return absl::InvalidArgumentError(
          "header X-Request-Timeout: expected a number of seconds above 0 and at most 1000000");
    }
    timeout_us_ = static_cast<int64_t>(seconds * 1e6);
  }
  return absl::OkStatus();
}

absl::Status ApiCall::ReadRequest() {
  HttpRequest& request = exchange_->request();
  QT_RETURN_IF_ERROR(CheckHeaders());
  const std::string peer = absl::StrCat("http:", exchange_->connection());
  QT_ASSIGN_OR_RETURN(RpcRegistry::Registration first,
                      context_->calls->rpcs.Admit(peer, /*long_lived=*/false));
  registration_.emplace(std::move(first));
  memory_.emplace(context_->calls->memory, registration_->connection_bytes());
  request_bytes_ = static_cast<int64_t>(request.body.size());
  QT_RETURN_IF_ERROR(memory_->Resize(kBytesPerRequestByte * request_bytes_));
  if (request.method == "POST") {
    absl::StatusOr<JsonDocument> parsed = ParseJson(request.body, "body", kMaxDepth);
    if (!parsed.ok()) return WithoutQuote(parsed.status());
    body_ = *std::move(parsed);
    std::string().swap(request.body);
    QT_RETURN_IF_ERROR(CheckKnownFields(*route_, *body_));
  }
  if (const auto id = body_->is_object() ? body_->find("request_id") : body_->end();
      id != body_->end() && id->is_string() && IsRequestId(id->get_ref<const std::string&>())) {
    request_id_ = id->get<std::string>();
  }
  if (request_id_.empty()) request_id_ = absl::StrCat("q", context_->calls->next_id.fetch_add(1));
  return absl::OkStatus();
}

absl::Status ApiCall::StartRpcs() {
  const size_t count = translation_->rpcs().size();
  const std::string peer = absl::StrCat("http:", exchange_->connection());
  std::vector<RpcRegistry::Registration> registrations;
  registrations.push_back(*std::move(registration_));
  registration_.reset();
  while (registrations.size() < count) {
    QT_ASSIGN_OR_RETURN(RpcRegistry::Registration one,
                        context_->calls->rpcs.Admit(peer, /*long_lived=*/false));
    registrations.push_back(std::move(one));
  }
  LocalRpc::Options options;
  options.open = &context_->calls->rpcs;
  options.timeouts = context_->timeouts;
  options.max_priority = max_priority_;
  if (timeout_us_.has_value()) {  // less the time that the request has waited for its model
    const int64_t waited_us = MonotonicMicros() - arrival_us_;
    options.timeout_us = std::max<int64_t>(0, *timeout_us_ - waited_us);
  }
  options.binding = binding_;
  options.parent = span_.context;
  std::vector<Part> parts(count);
  std::vector<std::shared_ptr<RpcHandler>> handlers;
  for (size_t i = 0; i < count; ++i) {
    parts[i].rpc = std::make_shared<LocalRpc>(options, std::move(registrations[i]), this, i);
    handlers.push_back(context_->Find(translation_->rpcs()[i].method).make(parts[i].rpc));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return absl::OkStatus();  // the client has gone
    parts_ = std::move(parts);
    open_ = count;
    self_ = shared_from_this();
  }
  const std::shared_ptr<ApiCall> self = shared_from_this();  // the RPCs may all end meanwhile
  memory_->Shrink(request_bytes_);  // each RPC reserves memory for its message
  for (size_t i = 0; i < count; ++i) {
    try {
      parts_[i].rpc->Run(std::move(handlers[i]), std::move(translation_->rpcs()[i].message));
    } catch (const std::bad_alloc&) {
      DropUnstarted(i);
      throw;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    if (!finished_) continue;
    lock.unlock();
    CancelAll();  // a client that has gone, or an error, while RPCs were started
  }
  return absl::OkStatus();
}

void ApiCall::DropUnstarted(size_t first) {
  std::shared_ptr<ApiCall> self;
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = first; i < parts_.size(); ++i) {
    parts_[i].ended = parts_[i].closed = true;
    --open_;
  }
  if (open_ == 0) self = std::move(self_);
}

void ApiCall::OnMessage(size_t index, const grpc::ByteBuffer& message) {
  {
    // Set `unwritten` first: OnDrained and CancelAll call OnWritten only if it is set, and the RPC
    // waits for OnWritten.
    std::lock_guard<std::mutex> lock(mutex_);
    parts_[index].unwritten = true;
    if (finished_) return;
  }
  try {
    const ArenaMessage<v1::GenerateStreamResponse> response;
    ParseInto(message, response.get());
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    const std::string events = translation_->OnChunk(index, response->chunk());
    // A chunk without events is sent as an SSE comment, because OnDrained follows only a write.
    WriteLocked(events.empty() ? ":\n\n" : events);
  } catch (const std::bad_alloc&) {
    exchange_->Abort();
  }
}

void ApiCall::OnEnd(size_t index, grpc::ByteBuffer* last, const RpcOutcome& outcome) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Part& part = parts_[index];
    part.ended = true;
    if (last != nullptr) part.last.Swap(last);
    try {
      part.outcome = outcome;
    } catch (const std::bad_alloc&) {
      part.outcome = OutOfMemoryOutcome();
    }
  }
  try {
    context_->calls->completion->Post([self = shared_from_this()] { self->Advance(); });
  } catch (const std::bad_alloc&) {
    exchange_->Abort();  // OnDone then does it
  }
}

void ApiCall::WriteLocked(const std::string& events) {
  if (!std::exchange(begun_, true)) {
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = absl::StrCat("Cache-Control: no-cache\r\n", HeadersOf());
    status_ = head.status;
    exchange_->Begin(std::move(head));
  }
  exchange_->Write(events);
}

std::string ApiCall::HeadersOf() const {
  std::string headers;
  if (!request_id_.empty()) headers = absl::StrCat("X-Request-Id: ", request_id_, "\r\n");
  const std::optional<absl::string_view> format = exchange_->request().Header(kLoadFormatHeader);
  const LoadMeter* const load = context_->calls->load;
  if (!format.has_value() || load == nullptr) return headers;
  if (std::optional<LoadHeader> report = load->Header(*format); report.has_value()) {
    const bool binary = absl::EndsWith(report->name, "-bin");
    absl::StrAppend(&headers, report->name, ": ",
                    binary ? absl::Base64Escape(report->value) : report->value, "\r\n");
  }
  return headers;
}

void ApiCall::ExportSpan() {
  if (!span_.recorded) return;
  SpanExporter& exporter = context_->calls->tracer->exporter();
  try {
    EndedHttpRequest ended{.span = span_, .method = route_->method, .route = route_->path};
    ended.arrival_us = arrival_us_;
    ended.end_us = MonotonicMicros();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended.status = status_;
    }
    std::vector<Span> spans;
    spans.push_back(HttpSpan(ended, MonotonicEpochMicros()));
    exporter.Add(std::move(spans));
  } catch (const std::bad_alloc&) {
    exporter.CountLost(1);
  }
}

absl::Status ApiCall::TakeResponse(size_t index) {
  Part& part = parts_[index];
  response_bytes_ += static_cast<int64_t>(part.last.Length());
  return memory_->Resize(request_bytes_ + kBytesPerResponseByte * response_bytes_);
}

void ApiCall::Advance() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    RpcOutcome failure;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Part& part = parts_[i];
      if (!part.ended || part.closed) continue;
      part.closed = true;
      failure = std::move(part.outcome);
      if (failure.status.ok() && !finished_) {
        try {
          const absl::Status memory = TakeResponse(i);
          if (!memory.ok()) {
            failure = ToRpcOutcome(memory, request_id_, absl::Milliseconds(200));
          } else if (translation_->stream()) {
            const ArenaMessage<v1::GenerateStreamResponse> response;
            ParseInto(std::move(part.last), response.get());
            WriteLocked(translation_->OnComplete(i, response->complete()));
          }
        } catch (const std::bad_alloc&) {
          failure = OutOfMemoryOutcome();
        }
      }
    }
    if (!failure.status.ok()) Fail(failure, i);
    Close(i);
  }
}

void ApiCall::Close(size_t index) {
  // OnEnded releases the memory reservation of the RPC. TakeResponse has added the bytes of the
  // response to memory_.
  parts_[index].rpc->OnEnded();
  bool last;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    last = --open_ == 0;
  }
  if (!last) return;
  Finish();
  std::shared_ptr<ApiCall> self;
  std::lock_guard<std::mutex> lock(mutex_);
  self = std::move(self_);
}

void ApiCall::Finish() {
  try {
    std::vector<grpc::ByteBuffer> responses;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_) return;
      if (translation_->stream()) {
        WriteLocked(translation_->OnEnd());
        exchange_->End();
        finished_ = true;  // last: if memory is short before, Fail ends the stream
        return;
      }
      for (Part& part : parts_) responses.push_back(std::move(part.last));
    }
    absl::StatusOr<std::string> body = translation_->Body(responses);
    if (!body.ok()) {
      return Fail(ToRpcOutcome(body.status(), request_id_, absl::Milliseconds(200)), 0);
    }
    HttpResponse response = JsonResponse(200, *std::move(body));
    response.headers = HeadersOf();
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(finished_, true)) return;
    status_ = response.status;
    exchange_->Respond(std::move(response));
  } catch (const std::bad_alloc&) {
    Fail(OutOfMemoryOutcome(), 0);
  }
}

void ApiCall::Fail(const RpcOutcome& outcome, size_t index) {
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    const std::string message =
        WithJsonNames(outcome.status.error_message(),
                      translation_ == nullptr ? FieldRenames() : translation_->names(index));
    if (begun_) {
      exchange_->Write(translation_->OnError(ErrorJson(route_->style, outcome, message)));
      exchange_->End();
    } else {
      HttpResponse response = ErrorResponse(route_->style, outcome, message);
      response.headers += HeadersOf();
      status_ = response.status;
      exchange_->Respond(std::move(response));
    }
    finished_ = true;
  } catch (const std::bad_alloc&) {
    exchange_->Abort();
  }
  CancelAll();
}

void ApiCall::CancelAll() {
  for (size_t i = 0;; ++i) {
    std::shared_ptr<LocalRpc> rpc;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (i >= parts_.size()) return;
      if (parts_[i].ended) continue;
      rpc = parts_[i].rpc;
    }
    rpc->OnCancelled();
    bool unwritten;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      unwritten = std::exchange(parts_[i].unwritten, false);
    }
    if (unwritten) rpc->OnWritten(/*ok=*/false);
  }
}

void ApiCall::OnDrained() {
  for (size_t i = 0;; ++i) {
    std::shared_ptr<LocalRpc> rpc;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (i >= parts_.size()) return;
      if (!std::exchange(parts_[i].unwritten, false)) continue;
      rpc = parts_[i].rpc;
    }
    rpc->OnWritten(/*ok=*/true);
  }
}

void ApiCall::OnDone(bool) {
  const std::shared_ptr<ApiCall> self = shared_from_this();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
  }
  StopWaiting();
  CancelAll();
  // Closes RPCs for which OnEnd could not post Advance to the executor, for lack of memory.
  Advance();
  ExportSpan();
  // The destructor releases memory_: a task that prepares the request may still use it.
}

}  // namespace quintet
