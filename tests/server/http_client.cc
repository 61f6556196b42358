#include "tests/server/http_client.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace quintet {
namespace {

constexpr int kClientPatienceMs = 30'000;

// Replaces Catch's REQUIRE, which works only on one thread: tests use HTTP clients on several
// threads.
void Require(bool holds) {
  if (!holds) throw std::runtime_error("an HTTP client cannot connect, or waits for an answer");
}

bool Readable(int fd, int patience_ms) {
  pollfd polled = {fd, POLLIN, 0};
  return poll(&polled, 1, patience_ms) > 0;
}

}  // namespace

HttpClient::HttpClient(int port, int receive_buffer_bytes) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  Require(fd_ >= 0);
  if (receive_buffer_bytes > 0) {
    Require(setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                       sizeof(receive_buffer_bytes)) == 0);
  }
  const int on = 1;
  Require(setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  Require(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
}

HttpClient::~HttpClient() {
  if (fd_ >= 0) close(fd_);
}

HttpClient::HttpClient(HttpClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), unread_(std::move(other.unread_)) {}

bool HttpClient::Send(const std::string& text) const {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t n = send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

void HttpClient::EndRequests() const { shutdown(fd_, SHUT_WR); }

bool HttpClient::ReadMore() {
  Require(Readable(fd_, kClientPatienceMs));
  char buffer[16 << 10];
  const ssize_t n = read(fd_, buffer, sizeof(buffer));
  if (n > 0) unread_.append(buffer, static_cast<size_t>(n));
  return n > 0;
}

HttpAnswer HttpClient::Read(bool without_body) {
  size_t end;
  while ((end = unread_.find("\r\n\r\n")) == std::string::npos) {
    if (!ReadMore()) return {};
  }
  HttpAnswer answer;
  answer.head = unread_.substr(0, end + 4);
  unread_.erase(0, end + 4);
  answer.status = std::stoi(answer.head.substr(answer.head.find(' ') + 1));
  const std::string length = "\r\nContent-Length: ";
  const size_t at = answer.head.find(length);
  if (without_body || at == std::string::npos) return answer;
  const size_t bytes = std::stoul(answer.head.substr(at + length.size()));
  while (unread_.size() < bytes) {
    if (!ReadMore()) return {};
  }
  answer.body = unread_.substr(0, bytes);
  unread_.erase(0, bytes);
  return answer;
}

std::string HttpClient::ReadToEnd() {
  while (ReadMore()) continue;
  return std::exchange(unread_, "");
}

bool HttpClient::Ends(int patience_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  do {
    if (!Readable(fd_, std::min(patience_ms, 10))) continue;
    char buffer[4096];
    if (read(fd_, buffer, sizeof(buffer)) <= 0) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

std::string RequestText(const std::string& path, const std::string& method,
                        const std::string& headers) {
  return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}

HttpAnswer Fetch(int port, const std::string& path, const std::string& method) {
  HttpClient client(port);
  client.Send(RequestText(path, method));
  return client.Read(method == "HEAD");
}

}  // namespace quintet
