#include "server/model_info.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "engine/placement.h"
#include "engine/request.h"
#include "server/proto_conversion.h"

namespace quintet {

int64_t MaxInputTokens(const ModelHost& host) {
  const int64_t limit = host.options().decoding.max_input_tokens;
  const int64_t positions = host.config().position_limit();
  return positions > 0 ? std::min(limit, positions) : limit;
}

void WriteModelInfo(const ModelHost& host, const CallContext& context,
                    v1::GetModelInfoResponse* response) {
  const ModelConfig& config = host.config();
  response->set_model(host.options().name);
  response->set_family(FamilyName(config.family));
  response->set_head(HeadName(config.head));
  response->set_dtype(WeightTypeName(host.options().load.weights));
  response->set_weights_sha256(host.weights_sha256());
  response->set_version(host.options().version);
  response->set_parameters(static_cast<uint64_t>(host.model().parameters()));
  response->set_vocab(static_cast<uint32_t>(config.vocab));
  response->set_d_model(static_cast<uint32_t>(config.d_model));
  response->set_encoder_layers(static_cast<uint32_t>(config.encoder_layers));
  response->set_decoder_layers(static_cast<uint32_t>(config.decoder_layers));
  if (config.head == Head::kSequenceClassification || config.head == Head::kTokenClassification) {
    for (const std::string& label : config.label_names) response->add_labels(label);
  }
  for (int32_t id : config.eos_ids) response->add_eos_token_ids(static_cast<uint32_t>(id));
  if (config.pad_id >= 0) response->set_pad_token_id(static_cast<uint32_t>(config.pad_id));
  if (config.decoder_start_id >= 0) {
    response->set_decoder_start_token_id(static_cast<uint32_t>(config.decoder_start_id));
  }
  for (const AdapterSource& adapter : host.adapters().sources()) {
    response->add_adapters(adapter.name);
  }
  const SentenceModules* const modules = host.modules();
  response->set_embedding_columns(
      static_cast<uint32_t>(modules == nullptr ? config.d_model : modules->columns));
  if (modules != nullptr) {
    for (const auto& [name, prompt] : modules->prompts) response->add_prompt_names(name);
    response->set_embedding_max_tokens(static_cast<uint32_t>(
        std::min<int64_t>(modules->max_tokens, std::numeric_limits<uint32_t>::max())));
  }
  response->set_device(host.options().placement.device);
  response->set_cache_dtype(CacheTypeName(host.options().placement, config));
  response->set_model_version(host.version());
  const HostOptions& options = host.options();
  v1::Limits* limits = response->mutable_limits();
  limits->set_max_queue_requests(static_cast<uint32_t>(options.engine.max_queue_requests));
  limits->set_max_queue_tokens(static_cast<uint32_t>(options.engine.max_queue_tokens));
  limits->set_max_running_sequences(
      static_cast<uint32_t>(host.model().limits().max_step_sequences * host.engines()));
  limits->set_max_input_tokens(options.decoding.max_input_tokens);
  limits->set_max_new_tokens(options.decoding.max_new_tokens);
  limits->set_max_beams(options.decoding.max_beams);
  limits->set_max_samples(options.decoding.max_samples);
  limits->set_max_inputs(kMaxInputs);
  limits->set_max_targets(kMaxTargets);
  limits->set_max_message_bytes(static_cast<uint64_t>(context.max_message_bytes));
  limits->set_max_text_bytes(static_cast<uint64_t>(context.max_text_bytes));
  limits->set_encoder_cache_bytes(static_cast<uint64_t>(options.engine.encoder_cache_bytes));
  limits->set_default_timeout_ms(static_cast<uint32_t>(context.default_timeout_us / 1000));
  limits->set_max_timeout_ms(static_cast<uint32_t>(context.max_timeout_us / 1000));
}

v1::ModelState StateToProto(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return v1::MODEL_STATE_UNLOADED;
    case ModelState::kLoading:
      return v1::MODEL_STATE_LOADING;
    case ModelState::kServing:
      return v1::MODEL_STATE_SERVING;
    case ModelState::kReplacing:
      return v1::MODEL_STATE_REPLACING;
    case ModelState::kDraining:
      return v1::MODEL_STATE_DRAINING;
    case ModelState::kIdle:
      return v1::MODEL_STATE_IDLE;
    case ModelState::kFailed:
      return v1::MODEL_STATE_FAILED;
  }
  return v1::MODEL_STATE_UNSPECIFIED;
}

void WriteServedModel(const ServedModel& served, v1::ServedModel* model) {
  const ServedModel::View view = served.view();
  const HostOptions& options = view.host != nullptr ? view.host->options() : *view.options;
  model->set_model(served.name());
  model->set_device(options.placement.device);
  model->set_dtype(WeightTypeName(options.load.weights));
  model->set_ready(view.accepts);
  model->set_state(StateToProto(view.state));
  model->set_version(view.version);
  for (const AdapterSource& adapter :
       view.host != nullptr ? view.host->adapters().sources() : options.load.adapters) {
    model->add_adapters(adapter.name);
  }
  if (view.host == nullptr) return;
  const ModelHost& host = *view.host;
  const ModelConfig& config = host.config();
  model->set_family(FamilyName(config.family));
  model->set_head(HeadName(config.head));
  model->set_max_input_tokens(static_cast<uint32_t>(MaxInputTokens(host)));
  model->set_parameters(static_cast<uint64_t>(host.model().parameters()));
  constexpr std::pair<RequestKind, const char*> kTasks[] = {{RequestKind::kGenerate, "generate"},
                                                            {RequestKind::kEncode, "encode"},
                                                            {RequestKind::kScore, "score"},
                                                            {RequestKind::kClassify, "classify"}};
  for (const auto& [kind, task] : kTasks) {
    if (!CheckHead(kind, config).ok()) continue;
    model->add_tasks(task);
    if (kind == RequestKind::kGenerate) {
      model->set_max_new_tokens(host.options().decoding.max_new_tokens);
    }
  }
}

}  // namespace quintet
