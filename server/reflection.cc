#include "server/reflection.h"

#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "server/message_bytes.h"
#include "server/oneof.h"

namespace quintet {
namespace {

namespace reflection_pb = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

// The published protocol of KServe has maps where our .proto has lists of entries, which have the
// same wire format. Clients are shown the maps, because tools write maps as JSON objects.
void MarkMapEntries(google::protobuf::DescriptorProto* message) {
  for (auto& nested : *message->mutable_nested_type()) {
    if (nested.name() == "ParametersEntry") nested.mutable_options()->set_map_entry(true);
    MarkMapEntries(&nested);
  }
}

// Adds to the response the file and then all files that it imports, directly or indirectly.
void AddFiles(const FileDescriptor* file, reflection_pb::FileDescriptorResponse* response) {
  std::set<const FileDescriptor*> seen = {file};
  std::deque<const FileDescriptor*> left = {file};
  for (; !left.empty(); left.pop_front()) {
    google::protobuf::FileDescriptorProto proto;
    left.front()->CopyTo(&proto);
    if (proto.package() == "inference") {
      for (auto& message : *proto.mutable_message_type()) MarkMapEntries(&message);
    }
    response->add_file_descriptor_proto(proto.SerializeAsString());
    for (int i = 0; i < left.front()->dependency_count(); ++i) {
      const FileDescriptor* needed = left.front()->dependency(i);
      if (seen.insert(needed).second) left.push_back(needed);
    }
  }
}

void AddError(grpc::StatusCode code, const char* text,
              reflection_pb::ServerReflectionResponse* response) {
  auto* error =
      SetMember(response, &reflection_pb::ServerReflectionResponse::set_allocated_error_response);
  error->set_error_code(code);
  error->set_error_message(text);
}

void HandleRequest(const reflection_pb::ServerReflectionRequest& request,
                   const std::vector<std::string>& services,
                   reflection_pb::ServerReflectionResponse* response) {
  const DescriptorPool* pool = DescriptorPool::generated_pool();
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  const FileDescriptor* file = nullptr;
  switch (request.message_request_case()) {
    case reflection_pb::ServerReflectionRequest::kListServices: {
      auto* list = SetMember(
          response, &reflection_pb::ServerReflectionResponse::set_allocated_list_services_response);
      for (const std::string& service : services) list->add_service()->set_name(service);
      return;
    }
    case reflection_pb::ServerReflectionRequest::kAllExtensionNumbersOfType: {
      // The list of extension numbers is empty: no served .proto file has extensions.
      const std::string& type = request.all_extension_numbers_of_type();
      if (pool->FindMessageTypeByName(type) != nullptr) {
        SetMember(
            response,
            &reflection_pb::ServerReflectionResponse::set_allocated_all_extension_numbers_response)
            ->set_base_type_name(type);
        return;
      }
      break;
    }
    case reflection_pb::ServerReflectionRequest::kFileByFilename:
      file = pool->FindFileByName(request.file_by_filename());
      break;
    case reflection_pb::ServerReflectionRequest::kFileContainingSymbol:
      file = pool->FindFileContainingSymbol(request.file_containing_symbol());
      break;
    case reflection_pb::ServerReflectionRequest::kFileContainingExtension:
      break;
    case reflection_pb::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      AddError(grpc::StatusCode::INVALID_ARGUMENT, "the request is empty", response);
      return;
  }
  if (file != nullptr) {
    AddFiles(file,
             SetMember(
                 response,
                 &reflection_pb::ServerReflectionResponse::set_allocated_file_descriptor_response));
  } else {
    AddError(grpc::StatusCode::NOT_FOUND, "not found", response);
  }
}

class ReflectionStream final : public RpcHandler {
 public:
  explicit ReflectionStream(const std::vector<std::string>& services) : services_(services) {}

  void OnMessage(grpc::ByteBuffer* message) override {
    reflection_pb::ServerReflectionRequest request;
    const bool read = FromBytes(message, &request);
    reflection_pb::ServerReflectionResponse response;
    if (read) HandleRequest(request, services_, &response);
    std::lock_guard<std::mutex> lock(mutex_);
    if (read) {
      output_.message = ToBytes(response);
    } else {
      output_.end = MalformedRequestOutcome();
    }
  }
  void OnInputEnd() override {
    std::lock_guard<std::mutex> lock(mutex_);
    output_.end = RpcOutcome{};
  }
  void OnCancel() override {}

  RpcActivity activity() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return output_.message.has_value() ? RpcActivity::kWorking : RpcActivity::kAwaitingClient;
  }
  bool wants_message() const override { return activity() == RpcActivity::kAwaitingClient; }
  RpcOutput Next() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(output_, {});
  }

 private:
  const std::vector<std::string>& services_;
  mutable std::mutex mutex_;
  RpcOutput output_;
};

}  // namespace

std::vector<Method> ReflectionMethods(std::vector<std::string> services) {
  const auto shared = std::make_shared<const std::vector<std::string>>(std::move(services));
  std::vector<Method> methods;
  for (const char* version : {"v1", "v1alpha"}) {
    Method method;
    method.path =
        absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo");
    method.long_lived = true;
    method.make = [shared](std::shared_ptr<Rpc>) {
      return std::make_shared<ReflectionStream>(*shared);
    };
    methods.push_back(std::move(method));
  }
  return methods;
}

}  // namespace quintet
