// A route of the HTTP API: its table entry, and the translation of its requests and responses from
// and to quintet.v1.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/base/check.h"
#include "nlohmann/json.hpp"
#include "quintet/v1/inference.pb.h"
#include "server/api_errors.h"
#include "server/call.h"
#include "server/json_value.h"
#include "server/message_bytes.h"

namespace quintet {

// One HTTP request, translated: the RPCs that answer it, and the conversion of their responses.
// Not thread-safe. Functions throw std::bad_alloc.
class Translation {
 public:
  struct RpcOfRequest {
    std::string method;  // "Generate"
    grpc::ByteBuffer message;
  };

  virtual ~Translation() = default;

  // Returns the JSON body, made from the last messages of all RPCs in the order of rpcs(). If it
  // returns an error, the request ends with that error. Not called for streams.
  virtual absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) = 0;

  // For streams (server-sent events): each function returns the text of events, empty for none.
  // OnChunk and OnComplete are called for each RPC, and OnEnd once after all RPCs. If an RPC fails
  // after the first event, OnError is called with its JSON error object, and no function after it.
  virtual std::string OnChunk(size_t, const v1::GenerateChunk&) { return ""; }
  virtual std::string OnComplete(size_t, const v1::GenerateResponse&) { return ""; }
  virtual std::string OnEnd() { return ""; }
  virtual std::string OnError(const std::string& error) {
    return absl::StrCat("data: ", error, "\n\n");
  }

  std::vector<RpcOfRequest>& rpcs() { return rpcs_; }
  bool stream() const { return stream_; }
  // The sum of the bytes of the messages of rpcs().
  int64_t MessageBytes() const;
  // Returns the JSON names of fields, for an error of RPC `index`. Called only after an error.
  virtual FieldRenames names(size_t index) const {
    return names_.size() == 1 ? names_[0] : names_[index];
  }

 protected:
  template <typename Proto>
  void AddRpc(const char* method, const Proto& message) {
    rpcs_.push_back({method, ToBytes(message)});
    if constexpr (requires { message.call(); }) requested_model_ = message.call().model();
  }
  // Returns the name of the model as the client gave it, perhaps MODEL:ADAPTER. If the client gave
  // none, returns the name of the only model.
  std::string ModelName(const v1::CallInfo& info) const {
    return requested_model_.empty() ? info.model() : requested_model_;
  }

  std::vector<RpcOfRequest> rpcs_;
  std::vector<FieldRenames> names_{FieldRenames()};  // one for all RPCs, or one for each
  bool stream_ = false;

 private:
  std::string requested_model_;  // of the RPCs; empty: the only model
};

// Parses a response. It was serialized by this process; therefore parsing cannot fail.
template <typename Proto>
void ParseInto(grpc::ByteBuffer bytes, Proto* proto) {
  QT_CHECK(FromBytes(&bytes, proto));
}
// Parses a response whose type has no message in a oneof; other types need an ArenaMessage.
template <typename Proto>
Proto Parsed(grpc::ByteBuffer bytes) {
  Proto proto;
  ParseInto(std::move(bytes), &proto);
  return proto;
}

// Returns INVALID_ARGUMENT if the texts of all RPCs of a request are too large. `bytes` is the sum
// of their sizes; a text that all RPCs contain, such as a query, counts once per RPC. `field` is
// the JSON name of this repeated text.
absl::Status CheckRepeatedText(const CallContext& context, absl::string_view field, size_t bytes);

struct ApiRequest {
  const HttpRequest& http;
  const nlohmann::json& body;  // an empty object for GET
  std::string request_id;      // for CallOptions.request_id and ids of responses
  const CallContext& context;
  const ModelBinding& binding;  // the version that all RPCs of the request use

  // Returns the version of the named model that the RPCs use. UNAVAILABLE if there is none;
  // otherwise the errors of ModelDirectory::Find.
  absl::StatusOr<std::shared_ptr<ModelHost>> Find(const std::string& model) const;
};

// Describes one JSON member of a route's requests, to check requests and for /openapi.json.
struct ApiField {
  std::string name;
  std::string type;  // JSON Schema: "string", "array", ...; "any"
  std::string text;  // meaning, for /openapi.json
  bool required = false;
};

struct ApiRoute {
  const char* method;  // "POST"
  const char* path;    // "/v1/completions"; a '*' at its end matches any longer path
  const char* summary;
  ErrorStyle style = ErrorStyle::kOpenAi;
  std::vector<ApiField> fields;  // all members that requests may have; any other is an error
  bool streams = false;          // may answer with server-sent events
  std::function<absl::StatusOr<std::unique_ptr<Translation>>(const ApiRequest&)> translate;
};

// Return the members of a request that set CallOptions, EncodeOptions and DecodingOptions, as
// entries of ApiRoute::fields.
std::vector<ApiField> CallFields();
std::vector<ApiField> EncodeFields();
std::vector<ApiField> DecodingFields();
std::vector<ApiField> operator+(std::vector<ApiField> a, const std::vector<ApiField>& b);

// Returns an error that names the members of `body` that `route` does not have.
absl::Status CheckKnownFields(const ApiRoute& route, const nlohmann::json& body);

// Appends `value` with the fewest digits that give the same float again; null if it is not finite.
void AppendFloat(float value, std::string* to);
// Returns one server-sent event.
std::string Event(const JsonValue& value);
// The values of an FP32 embedding as a JSON array.
void AppendRow(absl::string_view values, std::string* to);

// Returns the routes of one family of clients.
std::vector<ApiRoute> OpenAiRoutes();
std::vector<ApiRoute> TeiRoutes();
std::vector<ApiRoute> TgiRoutes();
std::vector<ApiRoute> VllmRoutes();
// All of them.
const std::vector<ApiRoute>& ApiRoutes();

}  // namespace quintet
