#include "tools/load/http_target.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "boost/asio/connect.hpp"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"
#include "engine/clock.h"
#include "kernels/base/status_macros.h"
#include "server/address.h"
#include "server/api_errors.h"
#include "tools/load/event_reader.h"

namespace quintet {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using nlohmann::json;

constexpr size_t kReceiveBytes = 16 << 10;
constexpr size_t kMaxEventBytes = 16 << 20, kMaxBodyBytes = 256 << 20;
// Connections idle for longer are not reused: servers close them (`quintet serve` after 75 s).
constexpr int64_t kMaxIdleUs = 30'000'000;
// How much time the client gives the server to end a request whose deadline has passed.
constexpr int64_t kDeadlineMarginUs = 1'000'000;
constexpr int kHandlersPerPoll = 256;

constexpr absl::StatusCode kCodes[] = {
    absl::StatusCode::kOk,
    absl::StatusCode::kInvalidArgument,
    absl::StatusCode::kUnauthenticated,
    absl::StatusCode::kPermissionDenied,
    absl::StatusCode::kNotFound,
    absl::StatusCode::kFailedPrecondition,
    absl::StatusCode::kResourceExhausted,
    absl::StatusCode::kCancelled,
    absl::StatusCode::kUnavailable,
    absl::StatusCode::kDeadlineExceeded,
    absl::StatusCode::kInternal,
};

absl::StatusCode CodeOfStatus(int status) {
  for (const absl::StatusCode code : kCodes) {
    if (HttpStatusOf(code) == status) return code;
  }
  if (status == 413) return absl::StatusCode::kResourceExhausted;
  return status >= 400 && status < 500 ? absl::StatusCode::kInvalidArgument
                                       : absl::StatusCode::kInternal;
}

// Returns the status code for the reason in a stream's error event; such events have no code.
absl::StatusCode CodeOfReason(absl::string_view reason) {
  if (reason == kReasonQueued || reason == kReasonIdle) return absl::StatusCode::kDeadlineExceeded;
  if (reason == kReasonOutOfMemory) return absl::StatusCode::kResourceExhausted;
  for (const absl::StatusCode code : kCodes) {
    if (!reason.empty() && ReasonOf(absl::Status(code, "")) == reason) return code;
  }
  return absl::StatusCode::kInternal;
}

// Returns the member `name` of an object; null if there is none.
const json& Member(const json& object, const char* name) {
  static const json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

int64_t Count(const json& object, const char* name) {
  const json& value = Member(object, name);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

std::string Text(const json& value) { return value.is_string() ? value.get<std::string>() : ""; }

void TakeUsage(const json& body, RequestEnd* end) {
  const json& usage = Member(body, "usage");
  if (!usage.is_object()) return;
  end->input_tokens = Count(usage, "prompt_tokens");
  end->output_tokens = Count(usage, "completion_tokens");
}

// The message of an error object of either style (server/api_errors.h).
std::string ErrorMessage(const std::string& body) {
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const json& error = Member(parsed, "error");
  return error.is_string() ? Text(error) : Text(Member(error, "message"));
}

class HttpTarget final : public ServerTarget {
 public:
  static absl::StatusOr<std::unique_ptr<ServerTarget>> Connect(const ServerTargetOptions& options);

  void Send(uint64_t id, const PlannedRequest& planned) override;
  void Poll(int64_t timeout_us, LoadObserver* observer) override;

 private:
  class Connection;
  // The response to a GET request that Fetch sends; the load generator's requests are POST.
  struct Fetched {
    std::optional<RequestEnd> end;
    std::string body;
  };
  struct Deadline {
    int64_t at_us;
    std::weak_ptr<Connection> connection;
    uint64_t serial;  // of the request
  };

  explicit HttpTarget(const ServerTargetOptions& options) : options_(options) {}
  absl::Status Resolve();
  absl::Status ReadInfo();
  // Sends a GET and waits, at most until `until_us`, for its response or the failure of its
  // connection. If neither has occurred by then, `end` of the result is unset.
  std::shared_ptr<const Fetched> Fetch(const std::string& target, int64_t until_us);
  std::string Head(const char* method, const std::string& target) const;
  std::string Post(const PlannedRequest& planned) const;
  // Sends a request on an idle or new connection. Only the thread of Poll may call it.
  void Begin(uint64_t id, std::string request, std::shared_ptr<Fetched> fetched);
  void EndLateRequests();

  const ServerTargetOptions options_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::vector<tcp::endpoint> endpoints_;
  LoadObserver* observer_ = nullptr;               // during Poll
  std::vector<std::shared_ptr<Connection>> idle_;  // the one that was used last at the end
  std::deque<Deadline> deadlines_;                 // ascending
  uint64_t next_serial_ = 0;
};

// A connection and its current request.
class HttpTarget::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(HttpTarget* target) : target_(target), socket_(target->io_) {}

  void Begin(uint64_t id, uint64_t serial, std::string request, std::shared_ptr<Fetched> fetched) {
    id_ = id;
    serial_ = serial;
    request_ = std::move(request);
    fetched_ = std::move(fetched);
    end_ = RequestEnd();
    events_.Clear();
    parser_.emplace();
    parser_->eager(true);
    parser_->body_limit(kMaxBodyBytes);
    if (socket_.is_open()) return Write();
    asio::async_connect(socket_, target_->endpoints_,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                          if (error) return self->Lose();
                          error_code ignored;
                          self->socket_.set_option(tcp::no_delay(true), ignored);
                          self->Write();
                        });
  }
  // Ends request number `serial`, if it is still in progress, with DEADLINE_EXCEEDED.
  void EndLate(uint64_t serial) {
    if (!parser_.has_value() || serial_ != serial) return;
    end_.code = absl::StatusCode::kDeadlineExceeded;
    Finish(/*keep=*/false);
  }
  int64_t idle_since_us() const { return idle_since_us_; }

 private:
  using Parser = http::response_parser<http::string_body>;

  void Write() {
    asio::async_write(socket_, asio::buffer(request_),
                      // Even after a write error there may be a response that explains the error.
                      [self = shared_from_this()](error_code, size_t) { self->Read(); });
  }
  void Read() {
    if (!parser_.has_value()) return;  // EndLate
    const size_t unread = input_.size();
    input_.resize(unread + kReceiveBytes);
    socket_.async_read_some(asio::buffer(input_.data() + unread, kReceiveBytes),
                            [self = shared_from_this(), unread](error_code error, size_t got) {
                              self->input_.resize(unread + got);
                              self->OnInput(error);
                            });
  }
  void OnInput(error_code error) {
    if (!parser_.has_value()) return;
    if (error) {
      error_code ignored;
      if (error == asio::error::eof && parser_->is_header_done() && parser_->need_eof()) {
        parser_->put_eof(ignored);
      }
      return parser_->is_done() ? FinishResponse() : Lose();
    }
    size_t used = 0;
    while (used < input_.size() && !parser_->is_done()) {
      error_code flaw;
      const size_t put =
          parser_->put(asio::buffer(input_.data() + used, input_.size() - used), flaw);
      used += put;
      if (flaw && flaw != http::error::need_more) return Lose();
      if (put == 0) break;
    }
    input_.erase(0, used);
    if (parser_->is_header_done() && Streams()) TakeEvents();
    if (!parser_.has_value()) return;
    if (parser_->is_done()) return FinishResponse();
    Read();
  }

  bool Streams() const {
    const auto type = parser_->get()[http::field::content_type];
    return parser_->get().result_int() == 200 &&
           absl::StartsWith(absl::string_view(type.data(), type.size()), "text/event-stream");
  }
  void TakeEvents() {
    std::string& body = parser_->get().body();
    events_.Append(body);
    body.clear();
    while (const std::optional<absl::string_view> data = events_.Next()) TakeEvent(*data);
    if (events_.unread_bytes() > kMaxEventBytes) Lose();
  }
  void TakeEvent(absl::string_view data) {
    if (data == "[DONE]") return;
    const json event = json::parse(data.begin(), data.end(), nullptr, /*allow_exceptions=*/false);
    if (const json& error = Member(event, "error"); !error.is_null() || !event.is_object()) {
      end_.reason = Text(Member(error, "code"));
      end_.code = CodeOfReason(end_.reason);
      return;
    }
    TakeUsage(event, &end_);
    int64_t tokens = 0;
    for (const json& choice : Member(event, "choices")) {
      // Count only ids that were streamed. The last event of a choice (finish_reason is set)
      // contains the ids that no earlier event contained.
      const json& ids = Member(choice, "token_ids");
      if (ids.is_array() && Member(choice, "finish_reason").is_null()) {
        tokens += static_cast<int64_t>(ids.size());
      }
    }
    if (tokens > 0) target_->observer_->OnTokens(id_, tokens, MonotonicMicros());
  }

  void FinishResponse() {
    const auto& response = parser_->get();
    if (!Streams()) {
      end_ = HttpEnd(static_cast<int>(response.result_int()), response.body(),
                     response.count(http::field::retry_after) > 0);
    }
    Finish(parser_->keep_alive() && input_.empty());
  }
  // Ends the request with UNAVAILABLE because its connection has failed.
  void Lose() {
    if (!parser_.has_value()) return;
    end_.code = absl::StatusCode::kUnavailable;
    Finish(/*keep=*/false);
  }
  void Finish(bool keep) {
    if (fetched_ != nullptr) fetched_->body = std::move(parser_->get().body());
    parser_.reset();
    if (keep) {
      idle_since_us_ = MonotonicMicros();
      target_->idle_.push_back(shared_from_this());
    } else {
      error_code ignored;
      socket_.close(ignored);
    }
    if (fetched_ != nullptr) {
      fetched_->end = end_;
    } else {
      target_->observer_->OnEnd(id_, end_, MonotonicMicros());
    }
  }

  HttpTarget* const target_;
  tcp::socket socket_;
  int64_t idle_since_us_ = 0;

  uint64_t id_ = 0, serial_ = 0;
  std::string request_, input_;
  std::optional<Parser> parser_;  // set while there is a request
  EventReader events_;
  RequestEnd end_;
  std::shared_ptr<Fetched> fetched_;  // null: the request is part of the load
};

absl::StatusOr<std::unique_ptr<ServerTarget>> HttpTarget::Connect(
    const ServerTargetOptions& options) {
  std::unique_ptr<HttpTarget> target(new HttpTarget(options));
  QT_RETURN_IF_ERROR(target->Resolve());
  QT_RETURN_IF_ERROR(target->ReadInfo());
  return target;
}

absl::Status HttpTarget::Resolve() {
  QT_ASSIGN_OR_RETURN(const Address address, ParseAddress("--target", options_.address));
  error_code error;
  const auto found = tcp::resolver(io_).resolve(address.host, absl::StrCat(address.port), error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("--target: cannot resolve ", options_.address, ": ", error.message()));
  }
  for (const auto& one : found) endpoints_.push_back(one.endpoint());
  return absl::OkStatus();
}

std::shared_ptr<const HttpTarget::Fetched> HttpTarget::Fetch(const std::string& target,
                                                             int64_t until_us) {
  const auto fetched = std::make_shared<Fetched>();
  Begin(0, absl::StrCat(Head("GET", target), "\r\n"), fetched);
  while (!fetched->end.has_value()) {
    const int64_t left_us = until_us - MonotonicMicros();
    if (left_us <= 0) break;
    io_.run_one_for(std::chrono::microseconds(left_us));
  }
  return fetched;
}

absl::Status HttpTarget::ReadInfo() {
  const double connect_s = std::min(options_.timeout_s, 10.0);
  const int64_t until_us = MonotonicMicros() + static_cast<int64_t>(connect_s * 1e6);
  const std::string target =
      options_.model.empty() ? "/info" : absl::StrCat("/info?model=", options_.model);
  std::shared_ptr<const Fetched> fetched;
  // Try again while no server listens: the result is then UNAVAILABLE without a body.
  while (true) {
    fetched = Fetch(target, until_us);
    const bool absent =
        !fetched->end.has_value() ||
        (fetched->end->code == absl::StatusCode::kUnavailable && fetched->body.empty());
    if (!absent) break;
    if (MonotonicMicros() >= until_us) {
      return absl::DeadlineExceededError(absl::StrCat(
          "--target: no server answered at ", options_.address, " within ", connect_s, " s"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (fetched->end->code != absl::StatusCode::kOk) {
    return absl::Status(fetched->end->code,
                        absl::StrCat(options_.address, ": ", ErrorMessage(fetched->body)));
  }
  const json info = json::parse(fetched->body, nullptr, /*allow_exceptions=*/false);
  info_.vocab = Count(info, "vocab_size");
  if (info_.vocab <= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--target: no HTTP API of quintet serve at ", options_.address));
  }
  info_.conditions = {{"model", Text(Member(info, "model_id"))},
                      {"version", Text(Member(info, "version"))},
                      {"family", Text(Member(info, "family"))},
                      {"dtype", Text(Member(info, "model_dtype"))},
                      {"parameters", Count(info, "parameters")},
                      {"max_queue_requests", Count(info, "max_concurrent_requests")},
                      {"max_queue_tokens", Count(info, "max_batch_tokens")},
                      {"max_running_sequences", Count(info, "max_running_sequences")},
                      {"encoder_cache_bytes", Count(info, "encoder_cache_bytes")}};
  return absl::OkStatus();
}

std::string HttpTarget::Head(const char* method, const std::string& target) const {
  return absl::StrCat(method, " ", target, " HTTP/1.1\r\nHost: ", options_.address, "\r\n");
}

std::string HttpTarget::Post(const PlannedRequest& planned) const {
  const auto quoted = [](const std::string& text) {
    return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  };
  std::string body = R"({"prompt":)";
  if (planned.ids.empty()) {
    absl::StrAppend(&body, quoted(planned.text));
  } else {
    absl::StrAppend(&body, "[", absl::StrJoin(planned.ids, ","), "]");
  }
  if (!options_.model.empty()) absl::StrAppend(&body, R"(,"model":)", quoted(options_.model));
  if (!planned.adapter.empty()) absl::StrAppend(&body, R"(,"adapter":)", quoted(planned.adapter));
  static constexpr const char* kPriorities[] = {"low", "normal", "high"};
  absl::StrAppend(&body, R"(,"priority":")", kPriorities[static_cast<int>(options_.priority) - 1],
                  R"(","num_beams":)", planned.num_beams, R"(,"return_token_ids":true)");
  if (planned.output_tokens > 0) {
    absl::StrAppend(&body, R"(,"ignore_eos":true,"max_new_tokens":)", planned.output_tokens);
  }
  if (options_.stream) {
    absl::StrAppend(&body, R"(,"stream":true,"stream_options":{"include_usage":true})");
  }
  body += "}";
  return absl::StrCat(Head("POST", "/v1/completions"), "Content-Type: application/json\r\n",
                      "X-Request-Timeout: ", options_.timeout_s,
                      "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

void HttpTarget::Begin(uint64_t id, std::string request, std::shared_ptr<Fetched> fetched) {
  std::shared_ptr<Connection> connection;
  while (connection == nullptr && !idle_.empty()) {
    connection = std::move(idle_.back());
    idle_.pop_back();
    if (MonotonicMicros() - connection->idle_since_us() > kMaxIdleUs) connection.reset();
  }
  if (connection == nullptr) connection = std::make_shared<Connection>(this);
  const int64_t timeout_us = static_cast<int64_t>(options_.timeout_s * 1e6);
  const uint64_t serial = ++next_serial_;
  deadlines_.push_back({MonotonicMicros() + timeout_us + kDeadlineMarginUs, connection, serial});
  connection->Begin(id, serial, std::move(request), std::move(fetched));
}

void HttpTarget::Send(uint64_t id, const PlannedRequest& planned) {
  asio::post(io_, [this, id, request = Post(planned)]() mutable {
    Begin(id, std::move(request), nullptr);
  });
}

void HttpTarget::EndLateRequests() {
  const int64_t now_us = MonotonicMicros();
  while (!deadlines_.empty() && deadlines_.front().at_us <= now_us) {
    const Deadline late = std::move(deadlines_.front());
    deadlines_.pop_front();
    const std::shared_ptr<Connection> connection = late.connection.lock();
    if (connection != nullptr) connection->EndLate(late.serial);
  }
}

void HttpTarget::Poll(int64_t timeout_us, LoadObserver* observer) {
  observer_ = observer;
  if (io_.run_one_for(std::chrono::microseconds(timeout_us)) > 0) {
    for (int i = 1; i < kHandlersPerPoll && io_.poll_one() > 0; ++i) {
    }
  }
  EndLateRequests();
}

}  // namespace

RequestEnd HttpEnd(int status, const std::string& body, bool retry) {
  RequestEnd end;
  end.code = CodeOfStatus(status);
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (end.code == absl::StatusCode::kOk) {
    TakeUsage(parsed, &end);
    return end;
  }
  end.reason = Text(Member(Member(parsed, "error"), "code"));
  end.retry_info = retry;
  return end;
}

absl::StatusOr<std::unique_ptr<ServerTarget>> ConnectHttp(const ServerTargetOptions& options) {
  return HttpTarget::Connect(options);
}

}  // namespace quintet
