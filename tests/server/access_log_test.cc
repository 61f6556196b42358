#include "server/access_log.h"

#include <algorithm>
#include <new>

#include "nlohmann/json.hpp"
#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("access log: a line is one JSON object with every field") {
  const AccessRecord record = {.request_id = "a-1",
                               .model = "mod\"el\n\xE4",  // not UTF-8
                               .method = "Generate",
                               .code = 4,
                               .reason = "QUEUED",
                               .input_tokens = 3,
                               .output_tokens = 0,
                               .trace_id = {0xab, 2},
                               .queue_us = 17,
                               .total_us = 1'000'000'000'000};
  const std::string kTraceId = "ab020000000000000000000000000000";
  const std::string line = AccessLine(record, absl::FromUnixMillis(1'700'000'000'004));
  CHECK(std::count(line.begin(), line.end(), '\n') == 1);
  CHECK(line.back() == '\n');
  CHECK(nlohmann::json::parse(line) == nlohmann::json{{"time", "2023-11-14T22:13:20.004Z"},
                                                      {"level", "info"},
                                                      {"message", "call"},
                                                      {"request_id", "a-1"},
                                                      {"trace_id", kTraceId},
                                                      {"model", "mod\"el\n\xEF\xBF\xBD"},
                                                      {"method", "Generate"},
                                                      {"code", "DEADLINE_EXCEEDED"},
                                                      {"reason", "QUEUED"},
                                                      {"input_tokens", 3},
                                                      {"output_tokens", 0},
                                                      {"queue_us", 17},
                                                      {"total_us", 1'000'000'000'000}});
}

TEST_CASE("access log: every gRPC code has its name") {
  const char* const names[] = {"OK",
                               "CANCELLED",
                               "UNKNOWN",
                               "INVALID_ARGUMENT",
                               "DEADLINE_EXCEEDED",
                               "NOT_FOUND",
                               "ALREADY_EXISTS",
                               "PERMISSION_DENIED",
                               "RESOURCE_EXHAUSTED",
                               "FAILED_PRECONDITION",
                               "ABORTED",
                               "OUT_OF_RANGE",
                               "UNIMPLEMENTED",
                               "INTERNAL",
                               "UNAVAILABLE",
                               "DATA_LOSS",
                               "UNAUTHENTICATED"};
  for (int code = 0; code <= 16; ++code) {
    const std::string line = AccessLine({.code = code}, absl::UnixEpoch());
    CHECK(nlohmann::json::parse(line)["code"] == names[code]);
    CHECK(nlohmann::json::parse(line)["trace_id"] == "");
  }
}

TEST_CASE("access log: no memory for a line is not an error of the call") {
  AccessLog([](const std::string&) { throw std::bad_alloc(); }).Write({});
  AccessLog(nullptr).Write({});
}

}  // namespace
}  // namespace quintet
