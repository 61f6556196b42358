#include "tests/server/running_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "grpcpp/grpcpp.h"

namespace quintet {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

int PortOf(const std::string& listen) { return std::stoi(listen.substr(listen.rfind(':') + 1)); }

}  // namespace

RunningServer::RunningServer(const std::function<void(ServerOptions*)>& change) {
  options_.listen = absl::StrCat("127.0.0.1:", FreePort());
  options_.http_listen = absl::StrCat("127.0.0.1:", FreePort());
  options_.drain_delay_us = 0;
  HostOptions host;
  host.name = "g2p";
  host.directory = std::string(QUINTET_SOURCE_DIR) + "/deploy/models/g2p";
  host.cache_bytes = 64 << 20;
  host.version = "test";
  options_.models.push_back(host);
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

std::string RunningServer::Get(const std::string& path) const {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(PortOf(options_.http_listen));
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
        answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

double RunningServer::Metric(const std::string& prefix) const {
  std::istringstream text(Get("/metrics"));
  double sum = 0;
  for (std::string line; std::getline(text, line);) {
    if (line.rfind(prefix, 0) == 0) sum += std::stod(line.substr(line.rfind(' ') + 1));
  }
  return sum;
}

}  // namespace quintet
