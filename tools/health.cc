// quintet health: asks a server over HTTP whether it is ready. Container images use it as their
// health check, because they have neither a shell nor curl.
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/address.h"
#include "tools/command_line.h"
#include "tools/flag_group.h"

namespace quintet {
namespace {

struct HealthFlags {
  std::string http_listen = "127.0.0.1:9464";
  bool live = false;
};

// Timeout in seconds, applied to connect, to send and to each receive. It leaves a margin: a
// working `quintet serve` answers within 1 s under any load.
constexpr int kTimeoutSeconds = 3;

// Returns errno of the failed system call `call` as a status; a timeout becomes DEADLINE_EXCEEDED.
absl::Status Failure(const char* call) {
  if (errno == EAGAIN || errno == EINPROGRESS) {
    return absl::DeadlineExceededError(absl::StrCat("no answer within ", kTimeoutSeconds, " s"));
  }
  return absl::ErrnoToStatus(errno, call);
}

// Resolves `address`, connects to the first of its network addresses that accepts the connection,
// and returns the socket. `address` may be a server's listen address, even 0.0.0.0 or [::], because
// Linux connects these to the loopback interface.
absl::StatusOr<int> Connect(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  const absl::Cleanup release = [found] { freeaddrinfo(found); };
  absl::Status failed;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) {
      failed = Failure("socket");
      continue;
    }
    const timeval limit{.tv_sec = kTimeoutSeconds, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // also limits connect
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return fd;
    failed = Failure("connect");
    close(fd);
  }
  return failed;
}

// Sends a GET request for `path` and returns the HTTP status code of the response.
absl::StatusOr<int> Get(const Address& address, const std::string& path) {
  QT_ASSIGN_OR_RETURN(const int fd, Connect(address));
  const absl::Cleanup release = [&fd] { close(fd); };
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  // One call sends the whole request: it is short enough for the empty send buffer of a new
  // connection.
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) < 0) return Failure("send");
  constexpr size_t kStatusBytes = sizeof("HTTP/1.1 200") - 1;
  std::string answer(kStatusBytes, '\0');
  size_t received = 0;
  while (received < kStatusBytes) {
    const ssize_t part = recv(fd, &answer[received], kStatusBytes - received, 0);
    if (part < 0) return Failure("receive");
    if (part == 0) return absl::UnavailableError("the connection was closed before an answer");
    received += static_cast<size_t>(part);
  }
  int code = 0;
  if (!absl::StartsWith(answer, "HTTP/1.") || !absl::SimpleAtoi(answer.substr(9), &code)) {
    return absl::InvalidArgumentError("the answer is not HTTP");
  }
  return code;
}

int Run(const HealthFlags& flags) {
  const absl::StatusOr<Address> address = ParseAddress("--http-listen", flags.http_listen);
  if (!address.ok()) {
    return Fail(kExitUsage, absl::InvalidArgumentError(absl::StrCat(
                                "--http-listen: expected HOST:PORT, got ", flags.http_listen)));
  }
  const std::string path = flags.live ? "/healthz" : "/readyz";
  const std::string url = absl::StrCat("http://", flags.http_listen, path);
  const absl::StatusOr<int> code = Get(*address, path);
  // A failure exits with 1, because Docker allows only the exit codes 0 and 1 for a health check.
  if (!code.ok()) {
    return Fail(kExitFailed,
                absl::UnavailableError(absl::StrCat(url, ": ", code.status().message())));
  }
  if (*code != 200) {
    return Fail(kExitFailed,
                absl::UnavailableError(absl::StrCat(url, ": expected status 200, got ", *code)));
  }
  std::puts(flags.live ? "healthy" : "ready");
  return kExitDone;
}

}  // namespace

void AddHealthCommand(CommandLine& line) {
  auto flags = std::make_shared<HealthFlags>();
  CLI::App* command = line.AddCommand(
      {.name = "health",
       .description = "Check that a server is ready, or alive.",
       .example = "quintet health --http-listen 127.0.0.1:9464",
       .details = "Reads /readyz, or /healthz with --live, from the server's HTTP address. Exit "
                  "code 0: ready; 1: not ready, or\nno answer. For health checks of containers, "
                  "whose images have no shell."},
      [flags] { return Run(*flags); });
  FlagGroup server(command, "Server");
  server.Add("--http-listen", &flags->http_listen, "HOST:PORT",
             "HTTP address of the server, as given to serve.");
  server.AddSwitch("--live", &flags->live,
                   "Check /healthz, which also answers 200 while models load and during a drain.");
}

}  // namespace quintet
