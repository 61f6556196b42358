// Fuzz target: a client that sends any bytes to the HTTP server. Byte 0 selects the sizes of the
// pieces in which the client sends the others. What the server sends must begin like an HTTP/1.1
// response, and the server must close the connection once the client has half-closed it.
// libFuzzer's timer interrupts system calls, which are then repeated.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "server/api_errors.h"
#include "server/http_server.h"

namespace quintet {
namespace {

// Answers on the I/O thread with a stream of three parts: the first immediately, the others later.
class Stream final : public HttpHandler {
 public:
  explicit Stream(std::shared_ptr<HttpExchange> exchange) : exchange_(std::move(exchange)) {
    exchange_->Begin(PlainText(200, ""));
    exchange_->Write("one");
  }
  void OnDrained() override {
    if (++parts_ > 2) return;
    exchange_->Write("more");
    if (parts_ == 2) exchange_->End();
  }
  void OnDone(bool) override { exchange_.reset(); }

 private:
  std::shared_ptr<HttpExchange> exchange_;
  int parts_ = 0;
};

const HttpServer& Server() {
  static const HttpServer* const server = [] {
    HttpServer::Options options;
    options.listen = "127.0.0.1:0";
    options.max_body_bytes = 4096;
    options.request_timeout = std::chrono::milliseconds(100);
    options.refusal = RefusalResponse;
    const auto echo = [](const HttpRequest& request) {
      QT_CHECK_LE(request.body.size(), 4096u);
      return PlainText(200, request.body);
    };
    std::vector<HttpRoute> routes;
    routes.push_back({"GET", "/a", HttpRoute::Thread::kIo, echo});
    routes.push_back({"POST", "/p/*", HttpRoute::Thread::kIo, echo});
    routes.push_back(
        {"POST", "/s", HttpRoute::Thread::kIo, nullptr, [](std::shared_ptr<HttpExchange> exchange) {
           return std::make_shared<Stream>(std::move(exchange));
         }});
    auto started = HttpServer::Start(options, std::move(routes));
    QT_CHECK(started.ok());
    return started->release();
  }();
  return *server;
}

int Connect() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(Server().port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  QT_CHECK_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Reads until the server closes its side.
std::string ReadToEnd(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    // Otherwise the server is stuck.
    QT_CHECK_EQ(TEMP_FAILURE_RETRY(poll(&wait, 1, 10'000)), 1);
    const ssize_t got = TEMP_FAILURE_RETRY(recv(fd, buffer, sizeof(buffer), 0));
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

void Run(uint8_t pieces, std::string_view bytes) {
  const int fd = Connect();
  const size_t piece = pieces < 128 ? bytes.size() : pieces - 127;
  // Sends `bytes` in at most 16 parts, so that one fuzz input takes only microseconds.
  for (size_t at = 0, sent = 0; at < bytes.size(); ++sent) {
    const size_t size = std::min(sent < 15 ? piece : bytes.size(), bytes.size() - at);
    const ssize_t put = TEMP_FAILURE_RETRY(send(fd, bytes.data() + at, size, MSG_NOSIGNAL));
    if (put < 0) break;  // the server has answered and closed
    at += static_cast<size_t>(put);
  }
  shutdown(fd, SHUT_WR);
  const std::string answer = ReadToEnd(fd);
  close(fd);
  if (!answer.empty()) QT_CHECK(answer.starts_with("HTTP/1.1 "));
}

}  // namespace
}  // namespace quintet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  quintet::Run(data[0], std::string_view(reinterpret_cast<const char*>(data + 1), size - 1));
  return 0;
}
