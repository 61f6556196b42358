// Internals of HttpServer: one connection, the coroutine that serves it, and the state that it
// shares with a handler that answers later. Everything here runs on the I/O thread, unless noted.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "server/byte_stream.h"
#include "server/http_server.h"

namespace quintet {

// The coroutine that serves a connection. It starts suspended; the owner of `handle` destroys it.
// It is not an asio::awaitable, because Asio destroys an awaitable if an allocation fails; this
// coroutine gets std::bad_alloc instead.
struct HttpCoroutine {
  struct promise_type {
    HttpCoroutine get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {}  // out of memory: ends the coroutine and its connection
  };
  std::coroutine_handle<promise_type> handle;
};

// A coroutine with a result, for HttpCoroutine or another HttpTask. It starts when it is awaited.
template <typename T>
class HttpTask {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;
  struct Final {
    bool await_ready() noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle done) noexcept { return done.promise().caller; }
    void await_resume() noexcept {}
  };
  struct promise_type {
    HttpTask get_return_object() { return HttpTask(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    Final final_suspend() noexcept { return {}; }
    void return_value(T returned) { value = returned; }
    void unhandled_exception() { error = std::current_exception(); }
    std::coroutine_handle<> caller;
    std::exception_ptr error;
    T value{};
  };

  explicit HttpTask(Handle handle) : handle_(handle) {}
  HttpTask(const HttpTask&) = delete;
  HttpTask& operator=(const HttpTask&) = delete;
  ~HttpTask() { handle_.destroy(); }

  bool await_ready() const { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) {
    handle_.promise().caller = caller;
    return handle_;
  }
  T await_resume() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return handle_.promise().value;
  }

 private:
  const Handle handle_;
};

enum class HttpPhase : uint8_t { kReading, kHandling, kWriting };

// Events that resume the coroutine of a connection; a bit each.
enum HttpEvent : uint8_t { kReadable = 1, kWritable = 2, kNews = 4, kTurn = 8 };

class PendingExchange;

struct HttpConnection : public std::enable_shared_from_this<HttpConnection> {
  HttpConnection(boost::asio::io_context& io, uint64_t number) : number(number), socket(io) {}
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;
  ~HttpConnection() {
    if (coroutine) coroutine.destroy();
  }

  absl::string_view input() const { return {buffer.data() + begin, end - begin}; }

  const uint64_t number;
  boost::asio::ip::tcp::socket socket;
  std::unique_ptr<ByteStream> stream;
  std::shared_ptr<ssl_ctx_st> tls;  // keeps the context of `stream` alive
  std::coroutine_handle<> coroutine;
  std::coroutine_handle<> waiter;  // the innermost part of the coroutine, while it waits
  std::list<std::shared_ptr<HttpConnection>>::iterator self;
  bool closed = false;  // the coroutine ends when it is resumed
  // Three sets of HttpEvent bits: events that pending Asio operations will report, events that have
  // occurred, and events that resume the coroutine.
  uint8_t armed = 0, occurred = 0, awaited = 0;
  HttpPhase phase = HttpPhase::kReading;
  // Start and deadline of the phase; kHandling has no deadline.
  std::chrono::steady_clock::time_point since, deadline;

  std::vector<char> buffer;  // input: [begin, end). Empty while the connection is idle.
  size_t begin = 0, end = 0;
  size_t received = 0;  // bytes of the body that is being received
  std::string head;     // status line and header fields of the response, or a part of a stream
  std::shared_ptr<const std::string> body;
  size_t sent = 0, unsent = 0;
  std::shared_ptr<PendingExchange> exchange;  // null: no handler answers later
};

// Output that the handler of an exchange has produced and that the connection has not taken yet.
struct HttpNews {
  std::optional<HttpResponse> response;  // complete, or the head of a stream
  bool stream = false;                   // `response` is the head of a stream
  std::string bytes;                     // of the stream
  bool end = false, aborted = false;

  bool empty() const { return !response.has_value() && bytes.empty() && !end && !aborted; }
};

// The HTTP exchange (one request and its later response) of a connection. Thread-safe.
class PendingExchange final : public HttpExchange {
 public:
  // Makes the I/O thread call Take. Returns false if there is no memory for that.
  using Notify = std::function<bool()>;
  PendingExchange(HttpRequest request, uint64_t connection, Notify notify)
      : request_(std::move(request)), connection_(connection), notify_(std::move(notify)) {}

  HttpRequest& request() override { return request_; }
  uint64_t connection() const override { return connection_; }
  void Respond(HttpResponse response) override;
  void Begin(HttpResponse head) override;
  void Write(absl::string_view bytes) override;
  void End() override;
  void Abort() override;

  // For the I/O thread. Returns the handler's output since the last Take.
  HttpNews Take();
  // Whether Abort was called since the last Take.
  bool aborted() const;
  // Whether there is output of which the I/O thread was not notified, for lack of memory.
  bool HasMissedNews() const;
  // Called when the connection no longer serves the exchange. All later output is dropped.
  void Detach();

  std::shared_ptr<HttpHandler> handler;  // only on the I/O thread; null: a handler of the worker

 private:
  void NotifyLocked();

  HttpRequest request_;
  const uint64_t connection_;
  mutable std::mutex mutex_;
  Notify notify_;  // null: detached
  bool notified_ = false;
  HttpNews news_;
};

}  // namespace quintet
