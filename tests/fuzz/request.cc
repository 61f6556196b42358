// Fuzz target: any bytes as the message of a call. Every message that a client can send must give
// either requests that the engine can run or a clear error. Byte 0 selects the model, byte 1 the
// RPC.
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "engine/options.h"
#include "kernels/base/check.h"
#include "server/errors.h"
#include "server/handlers.h"
#include "tests/fuzz/served_models.h"

namespace quintet {
namespace {

InputLimits LimitsOf(const ModelHost& host) {
  InputLimits limits;
  limits.vocab = host.config().vocab;
  if (host.config().max_positions > 0) limits.max_tokens = host.config().max_positions;
  return limits;
}

// Checks an error as the client sees it: its code must be INVALID_ARGUMENT or FAILED_PRECONDITION,
// and its message must be printable and must not contain paths.
void CheckRefusal(const absl::Status& status) {
  QT_CHECK(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status));
  for (const char c : status.message()) {
    QT_CHECK(absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '/');
  }
  const RpcOutcome outcome = ToRpcOutcome(status, "fuzz", absl::Milliseconds(200));
  QT_CHECK_LE(outcome.status.error_details().size(), 4096u);
}

void CheckRequests(const absl::StatusOr<std::vector<Request>>& requests, const ModelHost& host) {
  if (!requests.ok()) return CheckRefusal(requests.status());
  for (const Request& request : *requests) {
    QT_CHECK(!request.input.empty());
    for (const int32_t id : request.input) {
      QT_CHECK_GE(id, 0);
      QT_CHECK_LT(id, host.config().vocab);
    }
    if (request.kind == RequestKind::kGenerate) {
      QT_CHECK(CheckDecoding(request.decoding, host.config().vocab).ok());
    }
  }
}

template <typename Proto>
bool Parse(const uint8_t* data, size_t size, Proto* proto) {
  return proto->ParseFromArray(data, static_cast<int>(size));
}

void Generate(const uint8_t* data, size_t size, const ModelHost& host) {
  v1::GenerateRequest proto;
  if (!Parse(data, size, &proto)) return;
  if (const absl::Status status = CheckCallOptions(proto.call()); !status.ok())
    return CheckRefusal(status);
  CheckRequests(GenerateRequests(proto, host, LimitsOf(host), /*stream=*/true), host);
}

void Encode(const uint8_t* data, size_t size, const ModelHost& host) {
  v1::EncodeRequest proto;
  if (!Parse(data, size, &proto)) return;
  for (const v1::Input& input : proto.inputs()) {
    absl::StatusOr<Request> one =
        EncodeRequestOf(input, proto.options(), proto.call(), host, LimitsOf(host), "inputs[0]");
    if (!one.ok()) return CheckRefusal(one.status());
    std::vector<Request> requests;
    requests.push_back(*std::move(one));
    CheckRequests(requests, host);
  }
}

void Score(const uint8_t* data, size_t size, const ModelHost& host) {
  v1::ScoreRequest proto;
  if (Parse(data, size, &proto)) CheckRequests(ScoreRequests(proto, host, LimitsOf(host)), host);
}

void Classify(const uint8_t* data, size_t size, const ModelHost& host) {
  v1::ClassifyRequest proto;
  if (!Parse(data, size, &proto)) return;
  CheckRequests(ClassifyHandler().Prepare(proto, host, LimitsOf(host)), host);
}

absl::Status AnyBytes(int64_t) { return absl::OkStatus(); }

void Tokenize(const uint8_t* data, size_t size, const ModelHost& host) {
  v1::TokenizeRequest proto;
  v1::TokenizeResponse response;
  if (!Parse(data, size, &proto)) return;
  const absl::Status status = WriteTokens(proto, host, LimitsOf(host), AnyBytes, &response);
  if (!status.ok()) CheckRefusal(status);
}

void Detokenize(const uint8_t* data, size_t size, const ModelHost& host) {
  v1::DetokenizeRequest proto;
  v1::DetokenizeResponse response;
  if (!Parse(data, size, &proto)) return;
  const absl::Status status = WriteText(proto, host, AnyBytes, &response);
  if (!status.ok()) CheckRefusal(status);
}

}  // namespace
}  // namespace quintet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  if (size < 2) return 0;
  constexpr void (*kCalls[])(const uint8_t*, size_t, const ModelHost&) = {
      Generate, Encode, Score, Classify, Tokenize, Detokenize};
  kCalls[data[1] % std::size(kCalls)](data + 2, size - 2, ServedModel(data[0]));
  return 0;
}
