#include "tools/session.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "spdlog/spdlog.h"
#include "tools/cores.h"
#include "tools/flag_values.h"
#include "tools/line_runner.h"

namespace quintet {
namespace {

constexpr int64_t kPageTokens = 16;

// Makes glibc keep freed memory in the process. Otherwise it returns multi-megabyte result buffers
// to the kernel, and every batch has page faults that cost more than the D2H copy of the results.
// Commands that use a session end after their last line, so the memory is not kept for long.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc's maximum
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

LoadOptions OptionsOf(const ModelFlags& flags, const ModelConfig& config, Device* device) {
  LoadOptions options;
  options.weights = WeightTypeOf(flags.placement, config);
  options.device = device;
  options.limits.page_size = kPageTokens;
  return options;
}

absl::Status Load(Session* session, const SessionNeeds& needs) {
  const ModelFlags& flags = session->flags;
  QT_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(flags.model));
  QT_ASSIGN_OR_RETURN(session->defaults, ReadGenerationDefaults(flags.model));
  QT_RETURN_IF_ERROR(CheckHead(needs.kind, config));
  if (needs.decodes) {
    if (absl::Status status = CheckGenerationSupported(session->defaults);
        !status.ok() && !flags.ignore_generation_fields) {
      return status;
    }
    for (const std::string& field : session->defaults.unsupported_fields) {
      spdlog::warn("{}: ignored", field);
    }
  }
  if (const std::string fallback = DtypeFallback(flags.placement, config); !fallback.empty()) {
    spdlog::warn("{}", fallback);
  }
  if (needs.tokenizer != TokenizerNeed::kNone) {
    absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer = Tokenizer::Load(flags.model);
    const bool may_lack = needs.tokenizer == TokenizerNeed::kIfThere;
    if (tokenizer.ok()) {
      session->tokenizer = *std::move(tokenizer);
    } else if (!may_lack || !absl::IsNotFound(tokenizer.status())) {
      return tokenizer.status();
    }
  }
  session->pool = std::make_unique<ThreadPool>(flags.threads);
  LoadOptions options = OptionsOf(flags, config, session->device.get());
  if (options.device != nullptr) session->free_bytes_before = options.device->free_bytes();
  LimitRequest limits = LimitRequestOf(flags);
  limits.decodes = needs.kind != RequestKind::kEncode;
  QT_RETURN_IF_ERROR(PlanMemory(flags.model, limits, &options, session->pool.get()));
  spdlog::debug("{}", DescribeLimits(limits, options, config));
  QT_ASSIGN_OR_RETURN(session->model, Model::Load(flags.model, options, session->pool.get()));
  session->config = session->model->config();
  if (!session->config.logit_scale_warning.empty()) {
    spdlog::warn("{}", session->config.logit_scale_warning);
  }
  return WarmUp(session->model.get(), needs.warm_up,
                [](absl::string_view problem) { spdlog::warn("{}", std::string(problem)); });
}

}  // namespace

LimitRequest LimitRequestOf(const ModelFlags& flags) {
  return {.workload = Workload::kJob,
          .max_running = flags.max_running,
          .max_batch_tokens = flags.max_batch_tokens,
          .cache_bytes = flags.cache_mib << 20,
          .max_bytes = flags.max_memory_mib << 20,
          .max_input_tokens = flags.max_input_tokens};
}

std::string LimitsNote(const std::string& model, const Placement& placement,
                       const LimitRequest& request) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(model);
  const absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(placement);
  if (!config.ok() || !device.ok()) return "";
  LoadOptions options;
  options.weights = WeightTypeOf(placement, *config);
  options.device = device->get();
  options.limits.page_size = kPageTokens;
  ThreadPool pool(1);
  if (!PlanMemory(model, request, &options, &pool).ok()) return "";
  return absl::StrCat(model, " on ", placement.device, ": ",
                      DescribeLimits(request, options, *config));
}

void AddModelFlags(CommandLine& line, CLI::App* command, ModelFlags* flags) {
  constexpr char kGroup[] = "Model";
  line.Require(
      command
          ->add_option("--model", flags->model,
                       "Model directory: Hugging Face files or the output of quintet convert.")
          ->type_name("DIR")
          ->group(kGroup));
  AddPlacementFlags(command, &flags->placement);
  AddThreadsFlag(command, &flags->threads)->group(kGroup);
  AddAutomaticFlag(command, "--max-running,--max-num-seqs", &flags->max_running, 4096,
                   "Maximum number of sequences decoded concurrently; each beam counts. auto: 4096 "
                   "on a GPU (GPT-2 2048, and fewer if memory is short), 64 on a CPU. Range "
                   "[1, 4096].")
      ->type_name("SEQUENCES")
      ->group(kGroup);
  command->add_option("--max-input-tokens", flags->max_input_tokens, "Maximum input length.")
      ->check(InRange(int64_t{1}, int64_t{1} << 24))
      ->type_name("TOKENS")
      ->group(kGroup);
  AddAutomaticFlag(command, "--max-batch-tokens,--max-num-batched-tokens", &flags->max_batch_tokens,
                   int64_t{1} << 24,
                   "Maximum number of tokens encoded in one batch; on a GPU also of prompt tokens "
                   "per step. auto: 16384 on a GPU (fewer if memory is short), 4096 on a CPU.")
      ->type_name("TOKENS")
      ->group(kGroup);
  AddAutomaticFlag(
      command, "--cache-memory", &flags->cache_mib, int64_t{1} << 24,
      "KV cache size. auto: room for --max-running sequences of usual length, at least "
      "1024, within the free memory. Range [1, 16777216].")
      ->type_name("MIB")
      ->group(kGroup);
  AddMaxMemoryFlag(command, &flags->max_memory_mib)->group(kGroup);
  line.AddConfigNote(command, [flags] {
    return LimitsNote(flags->model, flags->placement, LimitRequestOf(*flags));
  });
}

CLI::Option* AddAutomaticFlag(CLI::App* command, const char* name, int64_t* value, int64_t most,
                              const char* help) {
  return command
      ->add_option_function<std::string>(
          name,
          [value](const std::string& text) {
            if (!absl::SimpleAtoi(text, value)) *value = 0;  // auto
          },
          help)
      ->check(AutoOrInRange(1, static_cast<uint64_t>(most)))
      ->default_str("auto");
}

CLI::Option* AddThreadsFlag(CLI::App* command, int* threads) {
  return command
      ->add_option("--threads", *threads,
                   "Number of compute threads; 0 = one per physical core available to the process, "
                   "with a GPU at most 8. "
                   "Range [0, 1024].")
      ->check(InRange(0, 1024))
      ->type_name("THREADS");
}

void AddIgnoreGenerationFieldsFlag(CLI::App* command, bool* ignore) {
  command
      ->add_flag(kIgnoreGenerationFields, *ignore,
                 "Warn instead of rejecting a model whose generation_config.json sets fields that "
                 "change the output of transformers and that Quintet does not support.")
      ->group("Model");
}

CLI::Option* AddMaxMemoryFlag(CLI::App* command, int64_t* mib) {
  return command
      ->add_option("--max-memory", *mib,
                   "Limit for all memory of a model on its device; the KV cache gets what the rest "
                   "leaves. 0 = no limit except the free memory of a GPU.")
      ->check(InRange(int64_t{0}, int64_t{1} << 24))
      ->type_name("MIB");
}

std::unique_ptr<Session> OpenSession(const ModelFlags& flags, const SessionNeeds& needs,
                                     int* exit_code) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(flags.placement);
  if (!device.ok()) {
    *exit_code = Fail(kExitUsage, device.status());
    return nullptr;
  }
  auto session = std::make_unique<Session>();
  session->device = *std::move(device);
  session->flags = flags;
  if (flags.threads == 0) session->flags.threads = DefaultThreads(session->device != nullptr);
  const auto begin = std::chrono::steady_clock::now();
  absl::Status loaded = CatchOutOfMemory([&] { return Load(session.get(), needs); });
  if (!loaded.ok()) {
    *exit_code = FailModel(flags.model, loaded);
    return nullptr;
  }
  session->load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  KeepFreedMemory();  // only now, so that memory freed during loading is returned
  const ModelLimits& planned = session->model->limits();
  EngineLimits limits;
  limits.max_running_sequences = planned.max_step_sequences;
  // Encoding a few inputs on a GPU takes almost as long as encoding hundreds.
  constexpr int64_t kAdmissions = 8;  // for one turnover of all sequences
  if (session->device != nullptr) {
    limits.admission_sequences = std::max<int64_t>(1, planned.max_step_sequences / kAdmissions);
  }
  limits.max_queue_requests =
      needs.queue > 0 ? needs.queue : LinesInFlight(planned.max_step_sequences);
  limits.max_queue_tokens = limits.max_queue_requests * planned.max_encode_tokens;
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(session->model.get(), session->tokenizer.get(), limits);
  if (!engine.ok()) {
    *exit_code = FailModel(flags.model, engine.status());
    return nullptr;
  }
  session->engine = *std::move(engine);
  spdlog::debug("loaded {} M parameters in {:.2f} s, {} threads",
                session->model->parameters() / 1000000, session->load_seconds,
                session->flags.threads);
  return session;
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

}  // namespace quintet
