// An HTTP client over a plain socket of the loopback interface, which can also misbehave.
// Throws when it cannot connect or waits for an answer in vain.
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
  // `receive_buffer_bytes` limits what the kernel takes for a client that does not read; 0:
  // default.
  explicit HttpClient(int port, int receive_buffer_bytes = 0);
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  // False: the connection has ended.
  bool Send(const std::string& text) const;
  // No more will be sent.
  void EndRequests() const;
  // The next answer; without_body: to a HEAD request.
  HttpAnswer Read(bool without_body = false);
  // Everything up to the end of the connection; waits for 30 s at most.
  std::string ReadToEnd();
  // Whether the connection ends within `patience_ms`. Discards what arrives.
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

// One request on a connection of its own.
HttpAnswer Fetch(int port, const std::string& path, const std::string& method = "GET");

}  // namespace quintet
