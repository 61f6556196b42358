#include "tests/server/running_server.h"

#include <arpa/inet.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "tests/catch.h"

namespace quintet {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int PortOf(const std::string& listen) { return std::stoi(listen.substr(listen.rfind(':') + 1)); }

constexpr char kListen[] = "QUINTET_TEST_LISTEN", kHttpListen[] = "QUINTET_TEST_HTTP_LISTEN";

}  // namespace

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

ServerOptions TestOptions() {
  ServerOptions options;
  options.listen = absl::StrCat("127.0.0.1:", FreePort());
  options.http_listen = absl::StrCat("127.0.0.1:", FreePort());
  options.drain_delay_us = 0;
  HostOptions host;
  host.name = "g2p";
  host.directory = std::string(QUINTET_SOURCE_DIR) + "/deploy/models/g2p";
  host.limits.cache_bytes = 64 << 20;
  host.version = "test";
  options.models.push_back(host);
  return options;
}

RunningServer::RunningServer(const std::function<void(ServerOptions*)>& change)
    : options_(TestOptions()) {
  change(&options_);
  thread_ = std::thread([this] { outcome_ = Serve(options_, &signals_); });
  for (int i = 0; i < 3000 && Get("/readyz") != "ok\n"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(Get("/readyz") == "ok\n");
  channel_ = grpc::CreateChannel(options_.listen, grpc::InsecureChannelCredentials());
  stub_ = v1::Inference::NewStub(channel_);
}

RunningServer::~RunningServer() { Stop(); }

int RunningServer::Stop() {
  signals_.terminate = true;
  if (thread_.joinable()) thread_.join();
  return outcome_.exit_code;
}

std::string HttpGet(const std::string& address, const std::string& path, bool whole) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in to = Loopback(PortOf(address));
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
        answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  if (whole) return answer;
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

std::string RunningServer::Get(const std::string& path) const {
  return HttpGet(options_.http_listen, path);
}

std::string RunningServer::GetRaw(const std::string& path) const {
  return HttpGet(options_.http_listen, path, /*whole=*/true);
}

double RunningServer::Metric(const std::string& prefix) const {
  std::istringstream text(Get("/metrics"));
  double sum = 0;
  for (std::string line; std::getline(text, line);) {
    if (line.rfind(prefix, 0) == 0) sum += std::stod(line.substr(line.rfind(' ') + 1));
  }
  return sum;
}

ChildServer::ChildServer(const std::string& name) : options_(TestOptions()) {
  const std::string listen = absl::StrCat(kListen, "=", options_.listen);
  const std::string http = absl::StrCat(kHttpListen, "=", options_.http_listen);
  std::vector<char*> environment = {const_cast<char*>(listen.c_str()),
                                    const_cast<char*>(http.c_str()), nullptr};
  std::vector<char*> arguments = {const_cast<char*>("child"), const_cast<char*>(name.c_str()),
                                  nullptr};
  pid_t process = -1;
  REQUIRE(posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, arguments.data(),
                      environment.data()) == 0);
  process_ = process;
}

ChildServer::~ChildServer() {
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

void ChildServer::Signal(int signal) const { kill(process_, signal); }

int ChildServer::Wait() {
  int status = 0;
  for (int i = 0; i < 6000; ++i) {
    if (waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return -1;
}

ServerOptions ChildOptions() {
  ServerOptions options = TestOptions();
  REQUIRE(std::getenv(kListen) != nullptr);
  options.listen = std::getenv(kListen);
  options.http_listen = std::getenv(kHttpListen);
  return options;
}

}  // namespace quintet
