#include "tools/logging.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "nlohmann/json.hpp"
#include "server/log_queue.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

// Formats log lines as JSON. spdlog's own patterns cannot be used, because they do not escape the
// message.
class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    spdlog::memory_buf_t time;
    time_.format(message, time);
    const nlohmann::ordered_json line = {
        {"time", std::string(time.data(), time.size())},
        {"level", std::string(spdlog::level::to_string_view(message.level).data())},
        {"message", std::string(message.payload.data(), message.payload.size())}};
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }

 private:
  spdlog::pattern_formatter time_{"%Y-%m-%dT%H:%M:%S.%eZ", spdlog::pattern_time_type::utc, ""};
};

struct Log {
  bool json = false;
  std::unique_ptr<spdlog::formatter> formatter;
  spdlog::level::level_enum level = spdlog::level::info;
  std::shared_ptr<LogQueue> queue;  // null: logging is synchronous
};

Log& TheLog() {
  static Log* const log = new Log;  // never destroyed: other threads may log until the process ends
  return *log;
}

void UseSink(spdlog::sink_ptr sink) {
  auto logger = std::make_shared<spdlog::logger>("quintet", std::move(sink));
  logger->set_formatter(TheLog().formatter->clone());
  logger->set_level(TheLog().level);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace

void SetUpLogging(const std::string& format, const std::string& level) {
  Log& log = TheLog();
  log.json = format == "json";
  if (log.json) {
    log.formatter = std::make_unique<JsonFormatter>();
  } else {
    log.formatter = std::make_unique<spdlog::pattern_formatter>("%Y-%m-%d %H:%M:%S %l %v");
  }
  log.level = spdlog::level::from_str(level);
  UseSink(std::make_shared<spdlog::sinks::stderr_sink_mt>());
}

void QueueLog() {
  Log& log = TheLog();
  log.queue = std::make_shared<LogQueue>(LogQueue::Options());
  UseSink(log.queue);
  // If spdlog fails to format a log line, the line counts as dropped. The default error handler
  // would write a message to standard error instead.
  spdlog::default_logger()->set_error_handler(
      [queue = log.queue](const std::string&) { queue->CountDropped(); });
}

void LogLine(std::string line) {
  const Log& log = TheLog();
  if (log.queue != nullptr) {
    log.queue->Write(std::move(line));
  } else {
    std::fputs(line.c_str(), stderr);
  }
}

int64_t LogLinesDropped() {
  const Log& log = TheLog();
  return log.queue == nullptr ? 0 : log.queue->dropped_lines();
}

void LogFailure(const std::string& message) {
  const Log& log = TheLog();
  if (log.json) {
    spdlog::error("{}", message);
  } else {
    LogLine("quintet: " + message + "\n");
  }
  spdlog::default_logger()->flush();
}

}  // namespace quintet
