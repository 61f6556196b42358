#include "server/http_endpoints.h"

#include <CivetServer.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/address.h"
#include "server/metrics_text.h"

namespace quintet {
namespace {

void Answer(mg_connection* connection, int code, const char* type, const std::string& body) {
  mg_printf(
      connection,
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
      code, code == 200 ? "OK" : "Service Unavailable", type, body.size());
  mg_write(connection, body.data(), body.size());
}

// Handlers are asked for longer paths as well; what they turn away is not found.
bool IsExactly(absl::string_view path, mg_connection* connection) {
  return mg_get_request_info(connection)->local_uri == path;
}

// Where this process reaches a listener of its own.
std::string Reached(const std::string& host) {
  return host == "0.0.0.0" ? "127.0.0.1" : host == "::" ? "::1" : host;
}

class MetricsHandler : public CivetHandler {
 public:
  MetricsHandler(std::function<void()> collect, prometheus::Registry* registry)
      : collect_(std::move(collect)), registry_(registry) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    if (!IsExactly("/metrics", connection)) return false;
    collect_();
    Answer(connection, 200, "text/plain; version=0.0.4; charset=utf-8",
           MetricsText(registry_->Collect()));
    return true;
  }

 private:
  std::function<void()> collect_;
  prometheus::Registry* registry_;
};

class ProbeHandler : public CivetHandler {
 public:
  ProbeHandler(const char* path, std::function<bool()> probe)
      : path_(path), probe_(std::move(probe)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    if (!IsExactly(path_, connection)) return false;
    const bool good = probe_();
    Answer(connection, good ? 200 : 503, "text/plain", good ? "ok\n" : "unavailable\n");
    return true;
  }

 private:
  const char* const path_;
  std::function<bool()> probe_;
};

class CivetEndpoints : public HttpEndpoints {
 public:
  CivetEndpoints(Options options, const Address& address, prometheus::Registry* registry)
      : metrics_(std::move(options.collect), registry),
        healthz_("/healthz", std::move(options.healthy)),
        readyz_("/readyz", std::move(options.ready)),
        host_(Reached(address.host)),
        // A connection that says nothing holds a thread until its time is over, and a probe must
        // not wait for several: that would end the process that it asks about.
        server_(std::vector<std::string>{"listening_ports", options.listen, "num_threads", "16",
                                         "enable_directory_listing", "no", "request_timeout_ms",
                                         "1000"}) {
    server_.addHandler("/metrics", metrics_);
    server_.addHandler("/healthz", healthz_);
    server_.addHandler("/readyz", readyz_);
    port_ = server_.getListeningPorts().at(0);
  }

  // civetweb's listener looks at its stop flag every two seconds, or when somebody connects.
  ~CivetEndpoints() override {
    std::atomic<bool> stopped{false};
    std::thread visitor([&] {
      while (!stopped) {
        char error[64];
        mg_connection* visit = mg_connect_client(host_.c_str(), port_, 0, error, sizeof(error));
        if (visit != nullptr) mg_close_connection(visit);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    server_.close();
    stopped = true;
    visitor.join();
  }

 private:
  MetricsHandler metrics_;
  ProbeHandler healthz_, readyz_;
  const std::string host_;  // to be reached at
  int port_ = 0;
  CivetServer server_;  // last: it uses what is above
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpEndpoints>> HttpEndpoints::Start(
    Options options, prometheus::Registry* registry) {
  constexpr char kFlag[] = "--http-listen";
  const std::string listen = options.listen;
  // civetweb takes more than addresses: of a port alone it makes every address of this machine.
  const absl::StatusOr<Address> address = ReadAddress(kFlag, listen);
  if (!address.ok()) return address.status();
  try {
    return std::make_unique<CivetEndpoints>(std::move(options), *address, registry);
  } catch (const CivetException&) {
    return CannotListen(kFlag, listen,
                        "expected an address of this machine and a port that is free");
  }
}

}  // namespace quintet
