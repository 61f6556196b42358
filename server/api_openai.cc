// Routes of OpenAI's API.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/api_completion.h"
#include "server/api_route.h"
#include "server/api_usage.h"
#include "server/json_fields.h"

namespace quintet {
namespace {

using Json = JsonValue;

class EmbeddingsTranslation final : public Translation {
 public:
  static absl::StatusOr<std::unique_ptr<Translation>> Create(const ApiRequest& request) {
    auto made = std::make_unique<EmbeddingsTranslation>();
    JsonFields fields(request.body);
    v1::EncodeRequest proto;
    proto.mutable_call()->set_request_id(request.request_id);
    fields.ReadCall(proto.mutable_call());
    fields.ReadEncodeOptions(proto.mutable_options());
    std::vector<v1::Input> inputs;
    bool list = false;
    fields.ReadInputs("input", &inputs, &list);
    std::string format = "float";
    fields.Read("encoding_format", &format);
    if (format != "float" && format != "base64") {
      fields.Fail("encoding_format", "expected float or base64");
    }
    fields.Refuse("dimensions", {}, "not supported: the vectors have the model's size");
    if (proto.options().pooling() == v1::POOLING_NONE) {
      fields.Fail("pooling", "none is not supported here: use /embed_all");
    }
    QT_RETURN_IF_ERROR(fields.status());
    for (v1::Input& input : inputs) *proto.add_inputs() = std::move(input);
    made->base64_ = format == "base64";
    made->names_ = {{{"inputs", "input"}}};
    made->AddRpc("Encode", proto);
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    const auto response = Parsed<v1::EncodeResponse>(responses[0]);
    std::string body = R"({"object":"list","data":[)";
    for (int i = 0; i < response.embeddings_size(); ++i) {
      absl::StrAppend(&body, i == 0 ? "" : ",", R"({"object":"embedding","index":)", i,
                      R"(,"embedding":)");
      const std::string& values = response.embeddings(i).values();
      if (base64_) {
        absl::StrAppend(&body, "\"", absl::Base64Escape(values), "\"}");
      } else {
        AppendRow(values, &body);
        body.push_back('}');
      }
    }
    absl::StrAppend(&body, R"(],"model":)");
    AppendJsonString(ModelName(response.info()), &body);
    absl::StrAppend(&body, R"(,"usage":)", JsonText(UsageOf(response.info())), "}");
    return body;
  }

 private:
  bool base64_ = false;
};

class ModelsTranslation final : public Translation {
 public:
  static absl::StatusOr<std::unique_ptr<Translation>> Create(const ApiRequest& request) {
    auto made = std::make_unique<ModelsTranslation>();
    absl::string_view path = PathOf(request.http.target);
    if (absl::ConsumePrefix(&path, "/v1/models/")) made->wanted_ = Decoded(path);
    made->AddRpc("ListModels", v1::ListModelsRequest());
    return made;
  }

  absl::StatusOr<std::string> Body(const std::vector<grpc::ByteBuffer>& responses) override {
    const auto response = Parsed<v1::ListModelsResponse>(responses[0]);
    Json data = Json::Array();
    for (const v1::ServedModel& model : response.models()) {
      if (model.model() == wanted_) return JsonText(ModelJson(model));
      data.push_back(ModelJson(model));
      for (const std::string& adapter : model.adapters()) {
        const std::string id = absl::StrCat(model.model(), ":", adapter);
        Json json = ModelJson(model);
        json["id"] = id;
        json["parent"] = model.model();
        if (id == wanted_) return JsonText(json);
        data.push_back(std::move(json));
      }
    }
    if (!wanted_.empty()) return absl::NotFoundError("no model of this name is served");
    return JsonText({{"object", "list"}, {"data", std::move(data)}});
  }

 private:
  // Replaces %XX by the byte. Other text stays as it is.
  static std::string Decoded(absl::string_view text) {
    std::string decoded;
    while (!text.empty()) {
      int byte = 0;
      if (text.size() >= 3 && text.front() == '%' && absl::ascii_isxdigit(text[1]) &&
          absl::ascii_isxdigit(text[2]) && absl::SimpleHexAtoi(text.substr(1, 2), &byte)) {
        decoded += static_cast<char>(byte);
        text.remove_prefix(3);
      } else {
        decoded += text.front();
        text.remove_prefix(1);
      }
    }
    return decoded;
  }

  static Json ModelJson(const v1::ServedModel& model) {
    constexpr absl::string_view kStatePrefix = "MODEL_STATE_";
    static const int64_t started = absl::ToUnixSeconds(absl::Now());
    Json json = {{"id", model.model()},
                 {"object", "model"},
                 {"created", started},
                 {"owned_by", "quintet"},
                 {"ready", model.ready()},
                 {"state", v1::ModelState_Name(model.state()).substr(kStatePrefix.size())},
                 {"version", model.version()},
                 {"device", model.device()},
                 {"dtype", model.dtype()}};
    if (model.version() == 0) return json;
    json["parameters"] = model.parameters();
    json["family"] = model.family();
    json["head"] = model.head();
    json["max_input_tokens"] = model.max_input_tokens();
    json["tasks"] = std::vector<std::string>(model.tasks().begin(), model.tasks().end());
    return json;
  }

  std::string wanted_;  // empty: all
};

// Fields that OpenAI's clients send and that do not change the answer.
std::vector<ApiField> IgnoredFields() {
  std::vector<ApiField> fields;
  for (const char* name :
       {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}) {
    fields.push_back({name, "any", "Accepted and ignored."});
  }
  return fields;
}

std::vector<ApiField> GenerationFields() {
  return std::vector<ApiField>{
             {"max_tokens", "integer", "max_new_tokens."},
             {"max_completion_tokens", "integer", "max_new_tokens."},
             {"n", "integer", "Number of choices per prompt. More than 1 needs sampling or beams."},
             {"best_of", "integer", "Number of beams; at least n."},
             {"use_beam_search", "boolean", "Beam search with best_of beams, or n."},
             {"temperature", "number", "0: greedy; above 0: sampling. Default: the model's."},
             {"logprobs", "any", "Number of alternatives per token, or true."},
             {"stream", "boolean", "Answer with server-sent events."},
             {"stream_options", "object", "include_usage: token counts in the last event."},
             {"frequency_penalty", "number", "Only 0."},
             {"presence_penalty", "number", "Only 0."},
             {"logit_bias", "object", "Only empty."}} +
         DecodingFields() + CallFields() + IgnoredFields();
}

std::vector<ApiField> CompletionFields() {
  return std::vector<ApiField>{
             {"prompt", "any", "Text, token ids, or an array of 1 to 64 of them.", true},
             {"suffix", "string", "Only empty."}} +
         GenerationFields();
}

std::vector<ApiField> ChatFields() {
  return std::vector<ApiField>{
             {"messages", "array", "1 to 256 messages with role and content.", true},
             {"tools", "array", "Only empty."},
             {"tool_choice", "any", "Only none or auto."},
             {"functions", "array", "Only empty."},
             {"function_call", "any", "Only none or auto."},
             {"response_format", "object", "Only of type text."}} +
         GenerationFields();
}

}  // namespace

std::vector<ApiRoute> OpenAiRoutes() {
  const auto completion = [](bool chat) {
    return
        [chat](const ApiRequest& request) { return CompletionTranslation::Create(request, chat); };
  };
  std::vector<ApiRoute> routes;
  routes.push_back({"POST", "/v1/completions", "Generate text (OpenAI)", ErrorStyle::kOpenAi,
                    CompletionFields(), true, completion(false)});
  routes.push_back({"POST", "/v1/chat/completions", "Answer a chat (OpenAI)", ErrorStyle::kOpenAi,
                    ChatFields(), true, completion(true)});
  routes.push_back(
      {"POST", "/v1/embeddings", "Embed texts (OpenAI)", ErrorStyle::kOpenAi,
       std::vector<ApiField>{{"input", "any", "Text, token ids, or 1 to 64 of them.", true},
                             {"encoding_format", "string", "float (default) or base64."},
                             {"dimensions", "integer", "Not supported."}} +
           EncodeFields() + CallFields() + IgnoredFields(),
       false, EmbeddingsTranslation::Create});
  routes.push_back({"GET",
                    "/v1/models",
                    "List the served models (OpenAI)",
                    ErrorStyle::kOpenAi,
                    {},
                    false,
                    ModelsTranslation::Create});
  routes.push_back({"GET",
                    "/v1/models/*",
                    "Describe a served model (OpenAI)",
                    ErrorStyle::kOpenAi,
                    {},
                    false,
                    ModelsTranslation::Create});
  return routes;
}

}  // namespace quintet
