// An HTTP client for tests, on a loopback socket. It can also send malformed requests. It throws if
// it cannot connect or if no data arrives within 30 s.
#pragma once

#include <string>

namespace quintet {

struct HttpAnswer {
  int status = 0;    // 0: the connection ended first
  std::string head;  // with its last CRLFs
  std::string body;
};

class HttpClient {
 public:
  // `receive_buffer_bytes` is the size of the socket's receive buffer; 0: the kernel's default.
  explicit HttpClient(int port, int receive_buffer_bytes = 0);
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  // Sends `text` unchanged. Returns false if the connection has ended.
  bool Send(const std::string& text) const;
  // Half-closes the connection: the client sends nothing more, but can still read.
  void EndRequests() const;
  // Reads the next response. `without_body` must be true if the request was HEAD, because its
  // response has no body.
  HttpAnswer Read(bool without_body = false);
  // Reads until the server closes the connection, and returns all bytes that Read has not returned.
  // Throws after 30 s without data.
  std::string ReadToEnd();
  // Returns true if the connection ends within `patience_ms`. Discards all received bytes.
  bool Ends(int patience_ms = 30'000);

 private:
  // Appends received bytes to unread_. Returns false if the connection has ended.
  bool ReadMore();

  int fd_;
  std::string unread_;
};

// Returns everything of a request that precedes its body: the line "METHOD path HTTP/1.1", a Host
// header, `headers` (each must end with CRLF) and the empty line.
std::string RequestText(const std::string& path, const std::string& method = "GET",
                        const std::string& headers = "");

// Sends one request on a new connection and returns the response.
HttpAnswer Fetch(int port, const std::string& path, const std::string& method = "GET");

}  // namespace quintet
