// An HTTP client on a loopback socket that can also send malformed requests. Throws if it cannot
// connect or if no response arrives in time.
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
  // `receive_buffer_bytes` is the size of the kernel receive buffer; 0: default.
  explicit HttpClient(int port, int receive_buffer_bytes = 0);
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  // False: the connection has ended.
  bool Send(const std::string& text) const;
  // Half-closes the connection: nothing more is sent.
  void EndRequests() const;
  // Reads the next response. `without_body`: the request was HEAD.
  HttpAnswer Read(bool without_body = false);
  // Reads until the end of the connection, at most for 30 s.
  std::string ReadToEnd();
  // Returns true if the connection ends within `patience_ms`. Discards all received bytes.
  bool Ends(int patience_ms = 30'000);

 private:
  // False: the connection has ended.
  bool ReadMore();

  int fd_;
  std::string unread_;
};

// "METHOD path HTTP/1.1" with a Host header and further header lines, each with its CRLF.
std::string RequestText(const std::string& path, const std::string& method = "GET",
                        const std::string& headers = "");

// Sends one request on a new connection.
HttpAnswer Fetch(int port, const std::string& path, const std::string& method = "GET");

}  // namespace quintet
