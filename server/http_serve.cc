#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/asio/post.hpp"
#include "boost/beast/http/error.hpp"
#include "server/http_message.h"
#include "server/http_server_impl.h"

namespace quintet {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLingerTimeout{1'000};  // for the client to read the last response
constexpr size_t kLingerBytes = 256 << 10;
constexpr size_t kBufferBytes = 2 * kMaxHttpHeadBytes;
constexpr size_t kJoinedBytes = 16 << 10;  // smaller bodies are sent in one piece with their head
// Bytes of the shortest end of a chunked body, "0\r\n\r\n".
constexpr size_t kLastChunkBytes = 5;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

HttpEvent EventOf(StreamState state) {
  return state == StreamState::kWaitReadable ? kReadable : kWritable;
}

// Parses the buffered input of a connection. need_more is not a failure: the rest of the input has
// not arrived yet.
error_code Parse(HttpConnection* c, HttpParser* parser) {
  while (!parser->is_done() && c->begin < c->end) {
    error_code error;
    const absl::string_view input = c->input();
    // Beast fails an assertion if it gets a part of the last chunk twice. Waiting for more bytes is
    // safe: the unparsed rest of a chunked body has at least kLastChunkBytes bytes.
    if (parser->is_header_done() && parser->chunked() && input.size() < kLastChunkBytes) {
      return http::error::need_more;
    }
    const size_t used = parser->put(asio::buffer(input.data(), input.size()), error);
    c->begin += used;
    if (error && error != http::error::need_more) return error;
    if (error && used == 0) {
      // The request line or a header line is still incomplete.
      return input.size() < kBufferBytes ? error : http::error::header_limit;
    }
  }
  return {};
}

}  // namespace

struct AsioHttpServer::Received {
  explicit Received(const Options& options) {
    parser.eager(true);
    parser.header_limit(kMaxHttpHeadBytes);
    parser.body_limit(options.max_body_bytes);
  }

  HttpParser parser;
  HttpRequest request;                   // without a body until it is complete
  bool has_head = false;                 // OnHead has been called
  const HttpRoute* route = nullptr;      // set once the header has been read
  std::optional<HttpResponse> response;  // set once the response is known
  bool malformed = false;                // the connection must be closed after the response
  bool keep_alive = false, head_only = false;
  bool chunked = true;  // whether the client understands chunked streams
};

StreamState AsioHttpServer::ReadInput(HttpConnection* c) {
  c->buffer.resize(kBufferBytes);
  const absl::string_view input = c->input();
  std::memmove(c->buffer.data(), input.data(), input.size());
  c->begin = 0;
  c->end = input.size();
  size_t got = 0;
  const StreamState state =
      c->stream->Read(c->buffer.data() + c->end, c->buffer.size() - c->end, &got);
  if (state == StreamState::kOk) c->end += got;
  return state;
}

bool AsioHttpServer::Advance(HttpConnection* c, Received* in) {
  HttpParser& parser = in->parser;
  const error_code error = Parse(c, &parser);
  SetReceived(c, parser.get().body().size());
  if (error && error != http::error::need_more) {
    in->malformed = true;
    const auto [status, text] = MalformedRequest(error, options_.max_body_bytes);
    in->response = options_.refusal(status, text);
  } else if (const char* flaw = parser.is_header_done() ? HeaderError(parser) : nullptr) {
    in->malformed = true;
    in->response = options_.refusal(400, absl::StrCat("malformed request: ", flaw, "\n"));
  } else if (parser.is_header_done() && !in->has_head) {
    OnHead(c, in);
  }
  return parser.is_done() || in->response.has_value();
}

void AsioHttpServer::OnHead(HttpConnection* c, Received* in) {
  in->has_head = true;
  in->request = RequestOf(in->parser);
  if (options_.check != nullptr) in->response = options_.check(in->request);
  if (in->response.has_value()) return;
  const HttpRouteOrRefusal found = FindRoute(in->request, routes_);
  in->route = found.route;
  if (in->route == nullptr) {
    in->response = options_.refusal(found.status, found.text);
    in->response->headers += found.headers;
  } else if (!in->parser.is_done() && Expects100Continue(in->parser)) {
    constexpr size_t kBytes = sizeof(kContinue) - 1;
    size_t put = 0;
    // If the socket cannot take these few bytes now, the client is not reading: disconnect it.
    const StreamState state = c->stream->Write(kContinue, kBytes, &put);
    if (state != StreamState::kOk || put != kBytes) Close(c);
  }
}

HttpTask<bool> AsioHttpServer::Handshake(HttpConnection& c) {
  EnterPhase(&c, HttpPhase::kReading, options_.request_timeout);
  while (true) {
    const StreamState state = c.stream->Handshake();
    if (state == StreamState::kOk) co_return true;
    if (state == StreamState::kClosed) co_return false;
    const uint8_t events = co_await Wait(this, &c, EventOf(state));
    if (events == 0) co_return false;
  }
}

HttpTask<bool> AsioHttpServer::ReadRequest(HttpConnection& c, Received* in, bool first) {
  bool idle = !first && c.input().empty() && !c.stream->HasBuffered();
  EnterPhase(&c, HttpPhase::kReading, idle ? options_.idle_timeout : options_.request_timeout);
  if (idle) std::vector<char>().swap(c.buffer);
  while (!Advance(&c, in)) {
    if (c.closed) co_return false;
    StreamState state = StreamState::kWaitReadable;
    if (c.stream->HasBuffered()) state = ReadInput(&c);
    while (state == StreamState::kWaitReadable || state == StreamState::kWaitWritable) {
      const uint8_t events = co_await Wait(this, &c, EventOf(state));
      if (events == 0) co_return false;
      state = ReadInput(&c);
    }
    if (state == StreamState::kClosed) co_return false;
    if (std::exchange(idle, false)) {
      EnterPhase(&c, HttpPhase::kReading, options_.request_timeout);
    }
  }
  in->keep_alive = in->parser.is_done() && in->parser.keep_alive() && !in->malformed && !draining_;
  in->head_only = in->parser.is_header_done() && in->parser.get().method() == http::verb::head;
  in->chunked = in->parser.is_header_done() && in->parser.get().version() == 11;
  in->request.body = std::move(in->parser.get().body());
  in->request.received = SteadyClock::now();
  SetReceived(&c, 0);
  co_return !c.closed;
}

HttpResponse AsioHttpServer::RunHandler(const HttpRoute& route,
                                        const HttpRequest& request) const noexcept {
  try {
    return route.handler(request);
  } catch (...) {
    return failed_;
  }
}

void AsioHttpServer::StartWrite(HttpConnection* c, const HttpResponse& response,
                                const Received& in) {
  c->head = ResponseHead(response, in.keep_alive);
  c->body = in.head_only ? nullptr : response.body;
  if (c->body != nullptr && c->body->size() <= kJoinedBytes) {
    c->head += *c->body;
    c->body = nullptr;
  }
  CountUnsent(c);
}

void AsioHttpServer::StartStreamPart(HttpConnection* c, const HttpNews& news, const Received& in) {
  c->head.clear();
  if (news.response.has_value()) {
    c->head = StreamHead(*news.response, in.chunked, in.keep_alive);
  }
  if (!in.chunked) {
    c->head += news.bytes;
  } else if (!news.bytes.empty()) {
    absl::StrAppend(&c->head, absl::Hex(news.bytes.size()), "\r\n", news.bytes, "\r\n");
  }
  if (in.chunked && news.end) c->head += "0\r\n\r\n";
  CountUnsent(c);
}

StreamState AsioHttpServer::Send(HttpConnection* c) {
  const absl::string_view body = c->body == nullptr ? absl::string_view() : *c->body;
  while (c->sent < c->head.size() + body.size()) {
    const size_t of_head = std::min(c->sent, c->head.size());
    const absl::string_view rest = of_head < c->head.size()
                                       ? absl::string_view(c->head).substr(of_head)
                                       : body.substr(c->sent - of_head);
    size_t put = 0;
    const StreamState state = c->stream->Write(rest.data(), rest.size(), &put);
    if (state != StreamState::kOk) return state;
    c->sent += put;
  }
  return StreamState::kOk;
}

HttpTask<bool> AsioHttpServer::Flush(HttpConnection& c) {
  while (true) {
    const StreamState state = Send(&c);
    if (state == StreamState::kOk) break;
    if (state == StreamState::kClosed) co_return false;
    const uint8_t news = c.exchange == nullptr ? 0 : kNews;
    const uint8_t events = co_await Wait(this, &c, static_cast<uint8_t>(EventOf(state) | news));
    if (events == 0) co_return false;
    if ((events & kNews) != 0 && c.exchange->aborted()) co_return false;
  }
  FinishWrite(&c);
  co_return true;
}

void AsioHttpServer::StartExchange(HttpConnection* c, Received* in) {
  const auto notify = [this, weak = c->weak_from_this()] {
    try {
      asio::post(io_, [this, weak] {
        if (const std::shared_ptr<HttpConnection> kept = weak.lock()) Signal(kept.get(), kNews);
      });
      return true;
    } catch (const std::bad_alloc&) {
      return false;  // CheckConnections finds the news
    }
  };
  const auto exchange =
      std::make_shared<PendingExchange>(std::move(in->request), c->number, notify);
  c->exchange = exchange;
  EnterPhase(c, HttpPhase::kHandling, milliseconds(0));
  const HttpRoute* const route = in->route;
  if (route->start == nullptr) {
    asio::post(worker_, [this, route, exchange] {
      exchange->Respond(RunHandler(*route, exchange->request()));
    });
    return;
  }
  try {
    exchange->handler = route->start(exchange);
  } catch (...) {
    exchange->Respond(failed_);
  }
}

void AsioHttpServer::EndExchange(HttpConnection* c, bool sent) {
  const std::shared_ptr<PendingExchange> exchange = std::exchange(c->exchange, nullptr);
  if (exchange == nullptr) return;
  exchange->Detach();
  const std::shared_ptr<HttpHandler> handler = std::exchange(exchange->handler, nullptr);
  if (handler != nullptr) handler->OnDone(sent);
}

HttpTask<bool> AsioHttpServer::RunExchange(HttpConnection& c, Received* in) {
  StartExchange(&c, in);
  const std::shared_ptr<PendingExchange> exchange = c.exchange;
  bool streaming = false;
  while (true) {
    const HttpNews news = exchange->Take();
    if (news.aborted) co_return false;
    if (!news.empty()) {
      streaming |= news.stream;
      if (streaming) {
        in->keep_alive &= in->chunked;
        StartStreamPart(&c, news, *in);
      } else {
        StartWrite(&c, *news.response, *in);
      }
      const bool sent = co_await Flush(c);
      if (!sent) co_return false;
      if (news.end) co_return true;
      EnterPhase(&c, HttpPhase::kHandling, milliseconds(0));
      exchange->handler->OnDrained();
      continue;
    }
    // Continues to read, to notice when the client disconnects. Does not read while the worker
    // thread runs the handler, which returns soon, or if later requests of the client fill the
    // buffer.
    const bool watched = exchange->handler != nullptr && c.input().size() < kBufferBytes;
    const uint8_t events =
        co_await Wait(this, &c, static_cast<uint8_t>(kNews | (watched ? kReadable : 0)));
    if (events == 0) co_return false;
    if ((events & kReadable) != 0 && ReadInput(&c) == StreamState::kClosed) co_return false;
  }
}

HttpTask<AsioHttpServer::Next> AsioHttpServer::ServeOne(HttpConnection& c, bool first) {
  Received in(options_);
  const bool read = co_await ReadRequest(c, &in, first);
  if (!read) co_return Next::kGone;
  const bool immediate = !in.response.has_value() && in.route->start == nullptr;
  if (immediate && in.route->thread == HttpRoute::Thread::kIo) {
    in.response = RunHandler(*in.route, in.request);
  } else if (immediate && handling_ >= max_connections_ / 4) {
    in.response = busy_response_;
  }
  bool sent = false;
  if (in.response.has_value()) {
    StartWrite(&c, *in.response, in);
    sent = co_await Flush(c);
  } else {
    sent = co_await RunExchange(c, &in);
    EndExchange(&c, sent);
  }
  if (!sent) co_return Next::kGone;
  const uint8_t turn = co_await Wait(this, &c, kTurn);
  if (turn == 0) co_return Next::kGone;
  co_return in.keep_alive ? Next::kRequest : Next::kLinger;
}

HttpTask<bool> AsioHttpServer::Linger(HttpConnection& c) {
  // Discards input: closing with unread input would reset the connection and lose the response.
  c.stream->EndWriting();
  EnterPhase(&c, HttpPhase::kReading, kLingerTimeout);
  for (size_t discarded = 0; discarded < kLingerBytes;) {
    c.begin = c.end = 0;
    const StreamState state = ReadInput(&c);
    discarded += c.end;
    if (state == StreamState::kClosed) break;
    if (state == StreamState::kOk) continue;
    const uint8_t events = co_await Wait(this, &c, EventOf(state));
    if (events == 0) break;
  }
  co_return true;
}

HttpCoroutine AsioHttpServer::Serve(HttpConnection& c) {
  const bool open = co_await Handshake(c);
  if (!open) co_return;
  Next next = Next::kRequest;
  for (bool first = true; next == Next::kRequest; first = false) {
    next = co_await ServeOne(c, first);
  }
  if (next == Next::kLinger) co_await Linger(c);
}

}  // namespace quintet
