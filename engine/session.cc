#include "engine/session.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/cores.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/foreign_files.h"
#include "models/tokenizers/tokenizer_file.h"

namespace quintet {
namespace {

constexpr int64_t kPageTokens = 16;

absl::Status ReadTokenizer(const ModelConfig& config, TokenizerNeed need, Session* session) {
  if (need == TokenizerNeed::kNone) return absl::OkStatus();
  const SessionOptions& flags = session->flags;
  QT_ASSIGN_OR_RETURN(const std::string path,
                      FindTokenizer(flags.tokenizer, flags.model, flags.follow_symlinks));
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer =
      LoadTokenizer(path, FamilyName(config.family));
  if (tokenizer.ok()) {
    session->tokenizer = *std::move(tokenizer);
    return absl::OkStatus();
  }
  const bool may_lack = need == TokenizerNeed::kIfThere && flags.tokenizer.empty() &&
                        absl::IsNotFound(tokenizer.status());
  return may_lack ? absl::OkStatus() : tokenizer.status();
}

absl::Status LoadModel(Session* session, const SessionNeeds& needs, const SessionLog& log) {
  QT_ASSIGN_OR_RETURN(session->flags.model,
                      FindModel(session->flags.model, session->flags.follow_symlinks));
  const SessionOptions& flags = session->flags;
  QT_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(flags.model));
  QT_ASSIGN_OR_RETURN(session->defaults, ReadGenerationDefaults(flags.model));
  QT_RETURN_IF_ERROR(CheckHead(needs.kind, config));
  if (needs.decodes) {
    if (absl::Status status = CheckGenerationSupported(session->defaults);
        !status.ok() && !flags.ignore_generation_fields) {
      return status;
    }
    for (const std::string& field : session->defaults.unsupported_fields) {
      log.warn(absl::StrCat(field, ": ignored"));
    }
  }
  if (const std::string choice = DescribeAutoDevice(flags.placement, config); !choice.empty()) {
    log.info(choice);
  }
  if (const std::string warning = DtypeWarning(flags.placement, config); !warning.empty()) {
    log.warn(warning);
  }
  if (session->tokenizer == nullptr) {
    QT_RETURN_IF_ERROR(ReadTokenizer(config, needs.tokenizer, session));
  }
  if (needs.kind == RequestKind::kEncode || needs.encodes) {
    QT_ASSIGN_OR_RETURN(session->modules,
                        ReadSentenceModules(flags.model, config, flags.follow_symlinks));
  }
  session->pool = std::make_unique<ThreadPool>(flags.threads);
  LoadOptions options = LoadOptionsOf(flags.placement, config, session->device.get());
  options.follow_symlinks = flags.follow_symlinks;
  options.adapters = flags.adapters;
  options.adapter_slots = flags.adapter_slots;
  options.merge_adapter = flags.merge_adapter;
  options.replica_of = session->replica_of;
  if (options.device != nullptr) session->free_bytes_before = options.device->free_bytes();
  LimitRequest limits = LimitRequestOf(flags);
  limits.decodes = needs.kind != RequestKind::kEncode;
  QT_RETURN_IF_ERROR(PlanMemory(flags.model, limits, &options, session->pool.get()));
  log.debug(DescribeLimits(limits, options, config));
  QT_ASSIGN_OR_RETURN(session->model, Model::Load(flags.model, options, session->pool.get()));
  session->config = session->model->config();
  session->adapters.Set(session->model->TakeAdapters());
  if (!session->config.logit_scale_warning.empty()) log.warn(session->config.logit_scale_warning);
  for (const std::string& unused : UnusedFileWarnings(flags.model)) log.warn(unused);
  return absl::OkStatus();
}

absl::Status CreateEngine(Session* session, const SessionNeeds& needs) {
  const ModelLimits& planned = session->model->limits();
  EngineLimits limits;
  limits.max_running_sequences = planned.max_step_sequences;
  if (session->device != nullptr) {
    constexpr int64_t kAdmissions = 8;  // admissions in which all sequences are replaced once
    limits.admission_sequences = std::max<int64_t>(1, planned.max_step_sequences / kAdmissions);
    limits.encode_before_decoding = true;
  }
  limits.max_queue_requests =
      needs.queue > 0 ? needs.queue : RequestsInFlight(planned.max_step_sequences);
  limits.max_queue_tokens = limits.max_queue_requests * planned.max_encode_tokens;
  QT_ASSIGN_OR_RETURN(session->engine,
                      Engine::Create(session->model.get(), session->tokenizer.get(), limits));
  return absl::OkStatus();
}

absl::Status LoadEngine(Session* session, const SessionNeeds& needs, const SessionLog& log) {
  const auto begin = std::chrono::steady_clock::now();
  QT_RETURN_IF_ERROR(CatchOutOfMemory([&]() -> absl::Status {
    QT_RETURN_IF_ERROR(LoadModel(session, needs, log));
    // Creating the engine allocates pinned memory. Meanwhile cuBLASLt, which the warm-up needs,
    // initialises itself in a thread of its own.
    QT_RETURN_IF_ERROR(CreateEngine(session, needs));
    return WarmUp(session->model.get(), needs.warm_up, log.warn);
  }));
  session->load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  log.debug(absl::StrFormat("loaded %d M parameters in %.2f s, %d threads",
                            session->model->parameters() / 1000000, session->load_seconds,
                            session->flags.threads));
  return absl::OkStatus();
}

// Loads several engines at the same time, each in a thread of its own, which runs on the engine's
// CPUs and uses its GPU, so that the threads and the memory of the engine do as well.
absl::Status LoadEngines(const std::vector<Session*>& sessions, const SessionNeeds& needs,
                         const SessionLog& log) {
  std::vector<absl::Status> statuses(sessions.size());
  std::vector<std::jthread> threads;  // joined even if one of them cannot be started
  for (size_t i = 0; i < sessions.size(); ++i) {
    threads.emplace_back([&, i] {
      RunOnCpus(sessions[i]->cpus);
      if (sessions[i]->device != nullptr) sessions[i]->device->Use();
      statuses[i] = LoadEngine(sessions[i], needs, log);
    });
  }
  threads.clear();
  absl::Status first;
  for (const absl::Status& status : statuses) first.Update(status);
  return first;
}

}  // namespace

LimitRequest LimitRequestOf(const SessionOptions& options) {
  return {.workload = Workload::kJob,
          .max_running = options.max_running,
          .max_batch_tokens = options.max_batch_tokens,
          .cache_bytes = options.cache_mib << 20,
          .max_bytes = (options.max_memory_mib << 20) / options.engines,
          .max_input_tokens = options.max_input_tokens,
          .models = options.engines};
}

LoadOptions LoadOptionsOf(const Placement& placement, const ModelConfig& config, Device* device) {
  LoadOptions options;
  options.weights = WeightTypeOf(placement, config);
  options.fp8_cache = HasFp8Cache(placement);
  options.device = device;
  options.limits.page_size = kPageTokens;
  return options;
}

absl::StatusOr<std::unique_ptr<Session>> LoadSession(const SessionOptions& options,
                                                     const SessionNeeds& needs,
                                                     std::vector<std::unique_ptr<Device>> devices,
                                                     const SessionLog& log) {
  const bool on_gpu = devices.front() != nullptr;
  if (on_gpu && options.engines > 1) {
    return absl::InvalidArgumentError(
        "--engines: only a CPU runs several engines; on GPUs there is one for each of --device");
  }
  const int engines = on_gpu ? static_cast<int>(devices.size()) : options.engines;
  devices.resize(static_cast<size_t>(engines));
  const int threads = options.threads > 0 ? options.threads : DefaultThreads(on_gpu);
  const auto make = [&](int part) {
    auto session = std::make_unique<Session>();
    session->device = std::move(devices[static_cast<size_t>(part)]);
    session->flags = options;
    session->flags.threads = std::max(1, threads / engines);
    if (!on_gpu && engines > 1) session->cpus = CpusOfPart(part, engines);
    return session;
  };
  std::unique_ptr<Session> session = make(0);
  if (engines == 1) {
    QT_RETURN_IF_ERROR(LoadEngine(session.get(), needs, log));
    return session;
  }
  QT_RETURN_IF_ERROR(LoadEngines({session.get()}, needs, log));
  std::vector<Session*> replicas;
  for (int part = 1; part < engines; ++part) {
    session->replicas.push_back(make(part));
    replicas.push_back(session->replicas.back().get());
    replicas.back()->tokenizer = session->tokenizer;
    replicas.back()->modules = session->modules;
    replicas.back()->replica_of = session->model.get();
  }
  const auto ignore = [](absl::string_view) {};  // the messages would be those of the first engine
  QT_RETURN_IF_ERROR(LoadEngines(replicas, needs, {ignore, ignore, ignore}));
  return session;
}

std::vector<Session*> Session::all() {
  std::vector<Session*> sessions = {this};
  for (const std::unique_ptr<Session>& replica : replicas) sessions.push_back(replica.get());
  return sessions;
}

int64_t Session::max_running() {
  int64_t sequences = 0;
  for (const Session* session : all()) sequences += session->model->limits().max_step_sequences;
  return sequences;
}

int64_t MostRequests(int64_t max_running, size_t engines) {
  return engines == 1 ? RequestsInFlight(max_running) : max_running + max_running / 4 + 1;
}

int64_t ShareOfQueue(const EngineLoad& load, int64_t all, int64_t queued, int64_t engines) {
  const int64_t equal = (all + queued + engines - 1) / engines;
  return std::max<int64_t>(0, std::min(equal, load.most) - load.own);
}

int64_t RequestsInFlight(int64_t max_running) {
  constexpr int64_t kChunk = 32;  // inputs that arrive together
  return max_running * 4 + kChunk;
}

absl::Status CheckDecodingRequest(const Session& session, const DecodingRequest& decoding,
                                  const DecodingLimits& limits) {
  const int32_t id = std::max(session.config.pad_id, 0);
  absl::StatusOr<DecodingOptions> options =
      ResolveDecoding(decoding, session.defaults, session.config, limits, {id});
  const int64_t max_running = session.model->limits().max_step_sequences;
  if (options.ok() && options->num_beams > max_running) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-running: ", max_running, " is less than --num-beams ", options->num_beams));
  }
  return options.status();
}

absl::StatusOr<std::vector<int32_t>> EncodeText(const Session& session, absl::string_view text,
                                                bool add_special_tokens) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("input: text of ", text.size(), " bytes exceeds ", kMaxTextBytes));
  }
  if (session.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        "the model has no tokenizer; pass token ids (command line: \"token_ids\" with --input "
        "json)");
  }
  return session.tokenizer->Encode({text.data(), text.size()}, add_special_tokens);
}

absl::StatusOr<std::vector<int32_t>> TruncateInput(const Session& session, std::vector<int32_t> ids,
                                                   bool truncate) {
  const ModelConfig& config = session.config;
  if (ids.empty() && config.decoder_only() && config.bos_id >= 0) ids = {config.bos_id};
  if (ids.empty())
    return absl::InvalidArgumentError("input: expected at least one token, got none");
  const size_t limit = static_cast<size_t>(session.flags.max_input_tokens);
  if (ids.size() <= limit) return ids;
  if (!truncate) {
    return absl::InvalidArgumentError(absl::StrCat("input: ", ids.size(),
                                                   " tokens exceed --max-input-tokens ", limit,
                                                   "; raise that limit or use --truncate"));
  }
  const int32_t last = ids.back();
  const bool ends_in_eos =
      std::find(config.eos_ids.begin(), config.eos_ids.end(), last) != config.eos_ids.end();
  ids.resize(limit);
  if (ends_in_eos) ids.back() = last;
  return ids;
}

absl::StatusOr<Question> AddContext(const Session& session, std::string context,
                                    bool add_special_tokens, std::vector<int32_t>* ids) {
  if (context.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("context: text of ", context.size(), " bytes exceeds ", kMaxTextBytes));
  }
  if (session.tokenizer == nullptr) {
    return absl::FailedPreconditionError("the model has no tokenizer");
  }
  Question question;
  question.context = std::move(context);
  question.context_begin = static_cast<int64_t>(ids->size());
  QT_ASSIGN_OR_RETURN(question.spans,
                      session.tokenizer->EncodeWithSpans(question.context, add_special_tokens));
  for (const TokenSpan& span : question.spans) ids->push_back(span.id);
  // Drop the special tokens around the context, which have no text, so that no answer contains
  // them.
  const auto has_text = [](const TokenSpan& span) { return span.end_byte > span.begin_byte; };
  while (!question.spans.empty() && !has_text(question.spans.back())) question.spans.pop_back();
  while (!question.spans.empty() && !has_text(question.spans.front())) {
    question.spans.erase(question.spans.begin());
    ++question.context_begin;
  }
  question.context_end = question.context_begin + static_cast<int64_t>(question.spans.size());
  if (question.spans.empty()) return absl::InvalidArgumentError("the context has no tokens");
  QT_ASSIGN_OR_RETURN(*ids, TruncateInput(session, std::move(*ids), false));
  return question;
}

}  // namespace quintet
