#include "server/byte_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "openssl/err.h"
#include "openssl/ssl.h"

namespace quintet {
namespace {

StreamState StateOfErrno(StreamState blocked) {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? blocked : StreamState::kClosed;
}

}  // namespace

ByteStream::ByteStream(int fd, ssl_ctx_st* tls) : fd_(fd), tls_(nullptr, SSL_free) {
  if (tls == nullptr) return;
  OpenTls(tls);
  SSL_set_accept_state(tls_.get());
}

ByteStream::ByteStream(int fd, ssl_ctx_st* tls, const std::string& host)
    : fd_(fd), tls_(nullptr, SSL_free) {
  OpenTls(tls);
  SSL_set_connect_state(tls_.get());
  X509_VERIFY_PARAM* const verify = SSL_get0_param(tls_.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) == 1) return;
  if (X509_VERIFY_PARAM_set1_host(verify, host.data(), host.size()) != 1 ||
      SSL_set_tlsext_host_name(tls_.get(), host.c_str()) != 1) {
    throw std::bad_alloc();
  }
}

void ByteStream::OpenTls(ssl_ctx_st* tls) {
  tls_.reset(SSL_new(tls));
  if (tls_ == nullptr || SSL_set_fd(tls_.get(), fd_) != 1) throw std::bad_alloc();
  SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                               SSL_MODE_RELEASE_BUFFERS);
}

StreamState ByteStream::StateOf(int result) const {
  if (result > 0) return StreamState::kOk;
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return StreamState::kWaitReadable;
    case SSL_ERROR_WANT_WRITE:
      return StreamState::kWaitWritable;
    default:
      return StreamState::kClosed;
  }
}

StreamState ByteStream::Handshake() {
  if (tls_ == nullptr) return StreamState::kOk;
  ERR_clear_error();
  return StateOf(SSL_do_handshake(tls_.get()));
}

StreamState ByteStream::Read(char* to, size_t size, size_t* got) {
  if (tls_ != nullptr) {
    ERR_clear_error();
    return StateOf(SSL_read_ex(tls_.get(), to, size, got));
  }
  const ssize_t n = recv(fd_, to, size, 0);
  if (n < 0) return StateOfErrno(StreamState::kWaitReadable);
  *got = static_cast<size_t>(n);
  return n > 0 ? StreamState::kOk : StreamState::kClosed;
}

StreamState ByteStream::Write(const char* from, size_t size, size_t* put) {
  if (tls_ != nullptr) {
    ERR_clear_error();
    return StateOf(SSL_write_ex(tls_.get(), from, size, put));
  }
  const ssize_t n = send(fd_, from, size, MSG_NOSIGNAL);
  if (n < 0) return StateOfErrno(StreamState::kWaitWritable);
  *put = static_cast<size_t>(n);
  return StreamState::kOk;
}

bool ByteStream::HasBuffered() const { return tls_ != nullptr && SSL_has_pending(tls_.get()) == 1; }

void ByteStream::EndWriting() {
  if (tls_ != nullptr && SSL_is_init_finished(tls_.get()) == 1) {
    ERR_clear_error();
    SSL_shutdown(tls_.get());
  }
  shutdown(fd_, SHUT_WR);
}

}  // namespace quintet
