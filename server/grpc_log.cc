#include "server/grpc_log.h"

#include <new>

#include "engine/clock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/version_info.h"
#include "spdlog/spdlog.h"

// Before 1.65, gRPC logs through its own gpr interface, in some releases also through Abseil. Since
// 1.65 it logs only through Abseil.
#define QUINTET_GPR_LOG (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65)
#if QUINTET_GPR_LOG
#include "absl/strings/match.h"
#include "grpc/support/log.h"
#endif
#ifdef QUINTET_ABSL_LOG
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#endif

namespace quintet {
namespace {

void Report(spdlog::level::level_enum level, absl::string_view file, int line) {
  static LocationLimiter* const limiter = new LocationLimiter;
  file.remove_prefix(file.rfind('/') + 1);  // npos + 1 is 0
  std::optional<int64_t> refused;
  try {
    refused = limiter->Admit(file, line, MonotonicMicros());
  } catch (const std::bad_alloc&) {  // must not propagate into gRPC
  }
  if (!refused.has_value()) return;
  spdlog::log(level,
              "gRPC {} message from {}:{} (text withheld because it may quote a client; {} more "
              "suppressed since the last one)",
              grpc::Version(), std::string(file), line, *refused);
}

#if QUINTET_GPR_LOG
void OnGprMessage(gpr_log_func_args* message) {
  // The text of a failed assertion is source code, so it may be logged. gRPC aborts afterwards.
  if (absl::StartsWith(message->message, "assertion failed: ")) {
    spdlog::critical("gRPC {} at {}:{}: {}", grpc::Version(), message->file, message->line,
                     message->message);
    spdlog::default_logger()->flush();
    return;
  }
  const spdlog::level::level_enum level =
      message->severity == GPR_LOG_SEVERITY_ERROR  ? spdlog::level::err
      : message->severity == GPR_LOG_SEVERITY_INFO ? spdlog::level::info
                                                   : spdlog::level::debug;
  Report(level, message->file, message->line);
}
#endif

#ifdef QUINTET_ABSL_LOG
class AbslSink : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& entry) override {
    const spdlog::level::level_enum level =
        entry.log_severity() == absl::LogSeverity::kInfo      ? spdlog::level::info
        : entry.log_severity() == absl::LogSeverity::kWarning ? spdlog::level::warn
        : entry.log_severity() == absl::LogSeverity::kError   ? spdlog::level::err
                                                              : spdlog::level::critical;
    Report(level, entry.source_filename(), entry.source_line());
  }
  void Flush() override { spdlog::default_logger()->flush(); }  // before it aborts
};
#endif

}  // namespace

std::optional<int64_t> LocationLimiter::Admit(absl::string_view file, int line, int64_t now_us) {
  constexpr int64_t kIntervalUs = std::chrono::microseconds(kGrpcLogInterval).count();
  std::lock_guard<std::mutex> lock(mutex_);
  std::pair<std::string, int> key(file, line);
  if (locations_.size() >= kMaxLocations && locations_.count(key) == 0) key = {"", 0};
  Location& location = locations_[std::move(key)];
  if (location.admitted_us.has_value() && now_us - *location.admitted_us < kIntervalUs) {
    ++location.refused;
    return std::nullopt;
  }
  location.admitted_us = now_us;
  return std::exchange(location.refused, 0);
}

void RouteGrpcLog() {
#if QUINTET_GPR_LOG
  gpr_set_log_function(OnGprMessage);
#endif
#ifdef QUINTET_ABSL_LOG
  absl::AddLogSink(new AbslSink);  // never freed
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfinity);
  absl::InitializeLog();
#endif
}

}  // namespace quintet
