// A byte stream over a connected non-blocking socket: plain TCP or TLS. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

// Types of openssl/ssl.h, declared here so that users of this header need not include ssl.h.
struct ssl_st;
struct ssl_ctx_st;

namespace quintet {

// The result of an operation of the stream: it made progress, it must be repeated once the socket
// is readable or writable, or the stream has ended or failed.
enum class StreamState : uint8_t { kOk, kWaitReadable, kWaitWritable, kClosed };

class ByteStream {
 public:
  // The side of a server. The caller owns `fd`, which must stay open. `tls`: the server's TLS
  // context; null: plain TCP. Throws std::bad_alloc.
  ByteStream(int fd, ssl_ctx_st* tls);
  // The side of a TLS client. The handshake fails unless the certificate is for `host`, a name or
  // an address. Throws std::bad_alloc.
  ByteStream(int fd, ssl_ctx_st* tls, const std::string& host);

  // Performs the TLS handshake. Returns kOk once it is complete, and always for plain TCP.
  StreamState Handshake();
  // Reads at most `size` bytes, which must not be 0. If it returns kOk, it has read *got bytes.
  StreamState Read(char* to, size_t size, size_t* got);
  // Writes at most `size` bytes, which must not be 0. If it returns kOk, it has written *put bytes.
  StreamState Write(const char* from, size_t size, size_t* put);
  // Whether TLS has buffered bytes: Read would return them although the socket has none.
  bool HasBuffered() const;
  // Tells the client that no more bytes follow.
  void EndWriting();

 private:
  void OpenTls(ssl_ctx_st* tls);
  StreamState StateOf(int result) const;

  const int fd_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;  // null: plain TCP
};

}  // namespace quintet
