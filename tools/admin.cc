// quintet admin: lists, loads, replaces and unloads the models of a running server.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/json_util.h"
#include "grpcpp/grpcpp.h"
#include "kernels/base/status_macros.h"
#include "quintet/admin/v1/admin.grpc.pb.h"
#include "tools/command_line.h"
#include "tools/flag_group.h"
#include "tools/flag_values.h"

namespace quintet {
namespace {

namespace admin_pb = ::quintet::admin::v1;

struct AdminFlags {
  std::string action, model, target = "127.0.0.1:50052", output = "text";
  std::string key_file, ca, cert, cert_key;
  double timeout_s = 600;
};

absl::StatusOr<std::string> ReadFile(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
  return text.str();
}

// Returns the API key from the file or, without a file, from the variable QUINTET_API_KEY.
absl::StatusOr<std::string> ApiKey(const AdminFlags& flags) {
  QT_ASSIGN_OR_RETURN(std::string key, ReadFile("--key-file", flags.key_file));
  if (flags.key_file.empty()) {
    const char* variable = std::getenv("QUINTET_API_KEY");
    key = variable == nullptr ? "" : variable;
  }
  absl::StripAsciiWhitespace(&key);
  if (!key.empty()) return key;
  return absl::InvalidArgumentError(
      "expected the key of an administrator in --key-file or in the variable QUINTET_API_KEY");
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const AdminFlags& flags) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!flags.ca.empty()) {
    grpc::SslCredentialsOptions tls;
    QT_ASSIGN_OR_RETURN(tls.pem_root_certs, ReadFile("--ca", flags.ca));
    QT_ASSIGN_OR_RETURN(tls.pem_cert_chain, ReadFile("--cert", flags.cert));
    QT_ASSIGN_OR_RETURN(tls.pem_private_key, ReadFile("--cert-key", flags.cert_key));
    credentials = grpc::SslCredentials(tls);
  } else if (!flags.cert.empty() || !flags.cert_key.empty()) {
    return absl::InvalidArgumentError("--cert and --cert-key: need --ca");
  }
  return grpc::CreateChannel(flags.target, credentials);
}

void Print(const admin_pb::Model& model) {
  const std::string state(absl::StripPrefix(v1::ModelState_Name(model.state()), "MODEL_STATE_"));
  std::printf("%s\t%s\tversion %llu", model.model().c_str(), state.c_str(),
              static_cast<unsigned long long>(model.version()));
  if (!model.weights_sha256().empty()) {
    std::printf("\tsha256 %s", model.weights_sha256().c_str());
  }
  if (model.retired_versions() > 0) std::printf("\t%u retired", model.retired_versions());
  if (model.waiting_calls() > 0) std::printf("\t%u calls wait", model.waiting_calls());
  if (!model.failure().empty()) std::printf("\tfailed: %s", model.failure().c_str());
  std::printf("\n");
}

void Print(const admin_pb::ListModelsResponse& response) {
  for (const admin_pb::Model& model : response.models()) Print(model);
}

void Print(const admin_pb::LoadModelResponse& response) { Print(response.model()); }
void Print(const admin_pb::UnloadModelResponse& response) { Print(response.model()); }

void Print(const admin_pb::ReloadModelResponse& response) {
  Print(response.model());
  if (response.drained_first()) std::printf("the version before was drained first\n");
}

void Print(const admin_pb::ReloadConfigurationResponse& response) {
  for (const admin_pb::ModelChange& change : response.changes()) {
    const std::string action = absl::AsciiStrToLower(
        absl::StripPrefix(admin_pb::ModelChange::Action_Name(change.action()), "ACTION_"));
    std::printf("%s\t%s\tversion %llu", change.model().c_str(),
                change.failure().empty() ? action.c_str() : "failed",
                static_cast<unsigned long long>(change.version()));
    if (!change.failure().empty()) std::printf("\t%s", change.failure().c_str());
    if (change.drained_first()) std::printf("\tthe version before was drained first");
    std::printf("\n");
  }
}

// Whether the response reports no failed operation.
template <typename Response>
bool Succeeded(const Response&) {
  return true;
}
bool Succeeded(const admin_pb::ReloadConfigurationResponse& response) {
  for (const admin_pb::ModelChange& change : response.changes()) {
    if (!change.failure().empty()) return false;
  }
  return true;
}

class Caller {
 public:
  Caller(const AdminFlags& flags, const std::string& key, std::shared_ptr<grpc::Channel> channel)
      : flags_(flags), stub_(admin_pb::Admin::NewStub(std::move(channel))) {
    context_.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::milliseconds(static_cast<int64_t>(flags.timeout_s * 1000)));
  }

  template <typename Request, typename Response>
  int Call(grpc::Status (admin_pb::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                         Response*)) {
    Request request;
    if constexpr (requires { request.set_model(""); }) request.set_model(flags_.model);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context_, request, &response);
    if (!status.ok()) {
      return Fail(kExitRemote,
                  absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                               absl::StrCat(flags_.target, ": ", status.error_message())));
    }
    if (flags_.output == "text") {
      Print(response);
    } else {
      std::string json;
      google::protobuf::util::JsonPrintOptions options;
      options.preserve_proto_field_names = true;
      (void)google::protobuf::util::MessageToJsonString(response, &json, options);
      std::puts(json.c_str());
    }
    return Succeeded(response) ? kExitDone : kExitRemote;
  }

 private:
  const AdminFlags& flags_;
  const std::unique_ptr<admin_pb::Admin::Stub> stub_;
  grpc::ClientContext context_;
};

int Run(const AdminFlags& flags) {
  const bool names_model =
      flags.action == "load" || flags.action == "reload" || flags.action == "unload";
  if (!names_model && !flags.model.empty()) {
    return Fail(kExitUsage, absl::InvalidArgumentError(
                                absl::StrCat("admin ", flags.action, ": takes no model")));
  }
  const absl::StatusOr<std::string> key = ApiKey(flags);
  if (!key.ok()) return Fail(kExitUsage, key.status());
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connect(flags);
  if (!channel.ok()) return Fail(kExitUsage, channel.status());
  Caller caller(flags, *key, *channel);
  if (flags.action == "load") return caller.Call(&admin_pb::Admin::Stub::LoadModel);
  if (flags.action == "reload") return caller.Call(&admin_pb::Admin::Stub::ReloadModel);
  if (flags.action == "unload") return caller.Call(&admin_pb::Admin::Stub::UnloadModel);
  if (flags.action == "list") return caller.Call(&admin_pb::Admin::Stub::ListModels);
  return caller.Call(&admin_pb::Admin::Stub::ReloadConfiguration);
}

}  // namespace

void AddAdminCommand(CommandLine& line) {
  auto flags = std::make_shared<AdminFlags>();
  CLI::App* command = line.AddCommand(
      {.name = "admin",
       .description = "List, load, replace and unload the models of a running server.",
       .example = "quintet admin reload g2p --target 127.0.0.1:50052 --key-file /etc/quintet/key",
       .details =
           "list: models with states and versions. load, unload: one model. reload: replace a "
           "model "
           "by its files as they\nare now. reload-configuration: read the --config file of the "
           "server again, as SIGHUP does. The server needs\n--admin-listen. Exit code 4: the call "
           "failed; the message says why."},
      [flags] { return Run(*flags); });
  line.Require(
      command
          ->add_option("action", flags->action,
                       "One of list, load, unload, reload and reload-configuration.")
          ->check(CLI::IsMember({"list", "load", "unload", "reload", "reload-configuration"}))
          ->type_name("ACTION"));
  command->add_option("model", flags->model, "Name of the model; default: the only one.")
      ->type_name("MODEL");
  FlagGroup server(command, "Server");
  server.Add("--target", &flags->target, "HOST:PORT", "Address of --admin-listen of the server.");
  server.Add("--key-file", &flags->key_file, "FILE",
             "File that holds the key of an administrator; empty = the variable QUINTET_API_KEY.");
  server.Add("--ca", &flags->ca, "FILE", "CA certificates (PEM) of the server; empty = plaintext.");
  server.Add("--cert", &flags->cert, "FILE", "Certificate of the client (PEM), for mutual TLS.");
  server.Add("--cert-key", &flags->cert_key, "FILE", "Private key of the client (PEM).");
  server.Add("--timeout", &flags->timeout_s, "SECONDS",
             "How long to wait for the end of the operation, which goes on afterwards.",
             InRange(0.001, 1e6));
  server.Add("--output", &flags->output, "FORMAT", "Output format: text or json.",
             CLI::IsMember({"text", "json"}));
}

}  // namespace quintet
