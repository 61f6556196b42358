#include "tools/serve_flags.h"

#include <algorithm>
#include <filesystem>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/cores.h"
#include "models/adapter_pool.h"
#include "models/checkpoint/find_model.h"
#include "tools/flag_group.h"
#include "tools/flag_values.h"
#include "tools/session.h"
#include "tools/version.h"

namespace quintet {
namespace {

int64_t Micros(double seconds) { return static_cast<int64_t>(seconds * 1e6); }

// Default of --encoder-cache-bytes: 256 MiB on a CPU, 0 (off) on a GPU. The encoder cache is in
// host memory: on a GPU it costs one device-to-host copy per input and one host-to-device copy per
// hit, which is worthwhile only if inputs repeat often.
int64_t DefaultEncoderCacheBytes(const Placement& placement) {
  return DeviceOrdinal(placement) < 0 ? int64_t{256} << 20 : 0;
}

// Returns the name under which clients know a model: the id of a repository without its revision,
// otherwise the last component of the path, which may end in a slash.
std::string NameOf(const std::string& model, const std::string& directory) {
  if (model != directory) {
    if (const std::optional<HubId> id = ParseHubId(model)) return id->repository;
  }
  const std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

LimitRequest LimitsOf(const ServeFlags& flags) {
  return {.workload = Workload::kServing,
          .max_running = flags.max_running,
          .max_batch_tokens = flags.max_batch_tokens,
          .cache_bytes = flags.cache_mib << 20,
          .max_bytes = flags.max_memory_mib << 20,
          .max_input_tokens = flags.decoding.max_input_tokens};
}

// A value of --model.
struct ModelArgument {
  std::string name, directory;
};

absl::StatusOr<ModelArgument> FindArgument(const ServeFlags& flags, const std::string& argument) {
  const size_t equals = argument.find('=');
  const std::string model = equals == std::string::npos ? argument : argument.substr(equals + 1);
  absl::StatusOr<std::string> directory = FindModel(model, flags.follow_symlinks);
  if (!directory.ok()) {
    return absl::Status(directory.status().code(),
                        absl::StrCat(model, ": ", directory.status().message()));
  }
  ModelArgument found;
  found.name = equals == std::string::npos ? NameOf(model, *directory) : argument.substr(0, equals);
  found.directory = *std::move(directory);
  return found;
}

// `flags` are the flags for this model. If flags.placement.device was "auto", ResolveAutoDevice
// must already have replaced it.
HostOptions HostOf(const ServeFlags& flags, const ModelArgument& model) {
  HostOptions host;
  host.name = model.name;
  host.directory = model.directory;
  host.tokenizer = flags.tokenizer;
  host.load.follow_symlinks = flags.follow_symlinks;
  // Ignore an error here: loading the model reports a directory that cannot be read.
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(host.directory);
  host.load.weights = WeightTypeOf(flags.placement, config.ok() ? *config : ModelConfig());
  host.load.fp8_cache = HasFp8Cache(flags.placement);
  host.ignore_generation_fields = flags.ignore_generation_fields;
  host.placement = flags.placement;
  host.engines = flags.engines;
  host.limits = LimitsOf(flags);
  host.engine = flags.engine;
  host.engine.encoder_cache_bytes =
      flags.encoder_cache_bytes.value_or(DefaultEncoderCacheBytes(flags.placement));
  host.decoding = flags.decoding;
  host.load.adapters = flags.adapters;
  host.load.adapter_slots = flags.adapter_slots;
  host.prompts = flags.prompts;
  host.default_prompt = flags.default_prompt;
  host.templates = flags.templates;
  host.vllm_metrics = flags.metrics_compat == "vllm";
  host.version = Version();
  host.idle_unload_us = flags.idle_unload_us;
  return host;
}

constexpr char kModel[] = "Model", kLimits[] = "Limits";
// Key of [models.NAME] that has no flag: the name of the prompt that is put before texts to encode.
constexpr char kDefaultPromptName[] = "default-prompt-name";
// Key of [models.NAME] that has no flag: how long the model may be unused before it is unloaded.
constexpr char kIdleUnload[] = "idle-unload";
// Key of [models.NAME] that has no flag: how many adapters requests can use at the same time.
constexpr char kAdapterSlots[] = "adapter-slots";

void AddModelFlags(CommandLine& line, CLI::App* command, ServeFlags* flags) {
  line.Require(
      command
          ->add_option(
              "model,--model", flags->models,
              "Model: a directory, a T5 text encoder in one safetensors or GGUF file, or the id of "
              "a "
              "model in the Hugging Face cache, optionally with the name that clients use "
              "(default: the name of the directory or file, or the id). Repeat it to serve several "
              "models.")
          ->type_name("[NAME=]MODEL")
          ->group(kModel));
  AddFollowSymlinksFlag(command, &flags->follow_symlinks);
  AddThreadsFlag(command, &flags->threads)->group(kModel);
}

template <typename T>
void AddLimit(CLI::App* command, const char* name, T* value, T least, T most, const char* unit,
              const char* help) {
  FlagGroup(command, kLimits).Add(name, value, unit, help, InRange(least, most));
}

constexpr int64_t kMany = int64_t{1} << 30;

void AddEncoderCacheFlag(CLI::App* command, ServeFlags* flags) {
  command
      ->add_option_function<std::string>(
          "--encoder-cache-bytes",
          [flags](const std::string& text) {
            int64_t bytes = 0;
            flags->encoder_cache_bytes.reset();
            if (absl::SimpleAtoi(text, &bytes)) flags->encoder_cache_bytes = bytes;
          },
          "Cache of encoder outputs for repeated inputs, in host memory, per model; 0 = off. auto: "
          "268435456 (256 MiB) on a CPU; 0 on a GPU, where the cache costs one device-to-host copy "
          "per input.")
      ->check(AutoOrInRange(0, uint64_t{1} << 40))
      ->default_str("auto")
      ->type_name("BYTES")
      ->group(kLimits);
}

// Adds the flags that a section [models.NAME] may set for one model.
void AddPerModelFlags(CLI::App* command, ServeFlags* flags) {
  AddPlacementFlags(command, &flags->placement);
  AddEnginesFlag(command, &flags->engines)->group(kModel);
  AddTokenizerFlag(command, &flags->tokenizer);
  AddAutomaticFlag(command, "--cache-memory", &flags->cache_mib, int64_t{1} << 24,
                   "KV cache size per model. auto: room for --max-running sequences of usual "
                   "length, at least 1024, within the free memory. Range [1, 16777216].")
      ->type_name("MIB")
      ->group(kModel);
  AddMaxMemoryFlag(command, &flags->max_memory_mib)->group(kModel);
  AddIgnoreGenerationFieldsFlag(command, &flags->ignore_generation_fields);
  EngineLimits* engine = &flags->engine;
  AddLimit(command, "--max-queue", &engine->max_queue_requests, int64_t{1}, int64_t{1} << 20,
           "REQUESTS", "Maximum number of queued requests per model. Range [1, 1048576].");
  AddLimit(command, "--max-queue-tokens", &engine->max_queue_tokens, int64_t{1}, kMany, "TOKENS",
           "Maximum number of queued input tokens per model.");
  AddAutomaticFlag(command, "--max-running,--max-num-seqs", &flags->max_running, 4096,
                   "Maximum number of sequences decoded concurrently; each beam counts. auto: 1024 "
                   "on a GPU (fewer if memory is short), 256 on a CPU. Range [1, 4096].")
      ->type_name("SEQUENCES")
      ->group(kLimits);
  AddEncoderCacheFlag(command, flags);
  AddLimit(command, "--max-input-tokens", &flags->decoding.max_input_tokens, 1u, 1u << 24, "TOKENS",
           "Maximum input length. Longer inputs are rejected unless the call sets truncate.");
  AddLimit(command, "--limit-new-tokens", &flags->decoding.max_new_tokens, 1u, 1u << 20, "TOKENS",
           "Upper limit for max_new_tokens of a request. Range [1, 1048576].");
  AddAutomaticFlag(command, "--max-batch-tokens,--max-num-batched-tokens", &flags->max_batch_tokens,
                   int64_t{1} << 24,
                   "Maximum number of tokens encoded in one batch; on a GPU also of prompt tokens "
                   "per step. auto: 16384 on a GPU (fewer if memory is short), 4096 on a CPU.")
      ->type_name("TOKENS")
      ->group(kLimits);
  AddLimit(command, "--prefill-share", &engine->prefill_share, 0.0, 1000.0, "SHARE",
           "Limit for encoding and prefill while sequences are being decoded, as a fraction of the "
           "decode time of a step; 0 = no limit. It keeps the inter-token latency of running "
           "sequences low. Range [0, 1000].");
}

void AddCallLimitFlags(CLI::App* command, ServeFlags* flags) {
  AddLimit(command, "--max-message-bytes", &flags->server.max_message_bytes, int64_t{1024}, kMany,
           "BYTES", "Maximum size of a request message. Minimum 1024.");
  AddLimit(command, "--default-timeout", &flags->default_timeout_s, 0.001, 1e6, "SECONDS",
           "Timeout for calls without a deadline (capped by --max-timeout).");
  AddLimit(command, "--max-timeout", &flags->max_timeout_s, 0.001, 1e6, "SECONDS",
           "Upper limit for the timeout of a call; longer deadlines are shortened to it.");
}

// Parses a time such as "10m" or "1h30m". The time 0 means: never unload the model.
absl::StatusOr<int64_t> ParseIdleUnload(const ModelSetting& setting) {
  constexpr absl::Duration kLeast = absl::Seconds(1), kMost = absl::Hours(24 * 365);
  absl::Duration time;
  if (absl::ParseDuration(setting.value, &time) &&
      (time == absl::ZeroDuration() || (time >= kLeast && time <= kMost))) {
    return absl::ToInt64Microseconds(time);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(setting.where,
                   ": expected \"0\" or a time from 1s to 8760h, such as \"10m\", "
                   "got \"",
                   setting.value, "\""));
}

absl::StatusOr<int64_t> ParseAdapterSlots(const ModelSetting& setting) {
  int64_t slots = 0;
  if (absl::SimpleAtoi(setting.value, &slots) && slots >= 0 &&
      slots <= static_cast<int64_t>(kMaxAdapters)) {
    return slots;
  }
  return absl::InvalidArgumentError(absl::StrCat(setting.where, ": expected 0 (automatic) to ",
                                                 kMaxAdapters, ", got \"", setting.value, "\""));
}

enum class Settings : uint8_t { kAll, kInEffect };

// Sets `flags` from `section`. With kInEffect, skips each setting that a flag or an environment
// variable overrides.
absl::Status ApplySection(const ModelSection& section, Settings which, ServeFlags* flags) {
  const Placement placement = flags->placement;
  CLI::App command;
  AddPerModelFlags(&command, flags);
  flags->placement = placement;  // AddPlacementFlags has set the default
  for (const ModelSetting& setting : section.settings) {
    if (which == Settings::kInEffect && setting.overridden) continue;
    if (setting.key == kDefaultPromptName) {
      flags->default_prompt = setting.value;
      continue;
    }
    if (setting.key == kIdleUnload) {
      QT_ASSIGN_OR_RETURN(flags->idle_unload_us, ParseIdleUnload(setting));
      continue;
    }
    if (setting.key == kAdapterSlots) {
      QT_ASSIGN_OR_RETURN(flags->adapter_slots, ParseAdapterSlots(setting));
      continue;
    }
    if (std::string* const text = TemplateSetting(setting.key, &flags->templates)) {
      *text = setting.value;
      continue;
    }
    CLI::Option* const option = command.get_option_no_throw("--" + setting.key);
    if (option == nullptr || setting.key == "help") {
      std::vector<std::string> known = FlagNames(command);
      known.push_back(absl::StrCat("--", kDefaultPromptName));
      known.push_back(absl::StrCat("--", kIdleUnload));
      known.push_back(absl::StrCat("--", kAdapterSlots));
      for (const char* name : kTemplateSettings) known.push_back(absl::StrCat("--", name));
      const std::string nearest = Nearest("--" + setting.key, known);
      return absl::InvalidArgumentError(absl::StrCat(
          setting.where, ": unknown key, or not a setting of one model",
          nearest.empty() ? "" : absl::StrCat(". Did you mean \"", nearest.substr(2), "\"?")));
    }
    QT_RETURN_IF_ERROR(SetFlag(option, {setting.value}, setting.where));
  }
  for (const ModelSetting& prompt : section.prompts) flags->prompts[prompt.key] = prompt.value;
  for (const ModelSetting& adapter : section.adapters) {
    flags->adapters.push_back({adapter.key, adapter.value});
  }
  const absl::Status templates = CheckTemplates(flags->templates);
  if (templates.ok()) return templates;
  return absl::InvalidArgumentError(absl::StrCat(section.where, ": ", templates.message()));
}

const ModelSection* SectionOf(const ServeFlags& flags, const std::string& name) {
  for (const ModelSection& section : flags.sections) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

// Returns the options of every model. Models on the same device share its memory (limits.models).
absl::StatusOr<std::vector<HostOptions>> HostsOf(const ServeFlags& flags) {
  std::vector<HostOptions> hosts;
  for (const std::string& argument : flags.models) {
    QT_ASSIGN_OR_RETURN(const ModelArgument model, FindArgument(flags, argument));
    ServeFlags own = flags;
    if (const ModelSection* section = SectionOf(flags, model.name); section != nullptr) {
      QT_RETURN_IF_ERROR(ApplySection(*section, Settings::kInEffect, &own));
    }
    ResolveAutoDevice(&own.placement);
    hosts.push_back(HostOf(own, model));
  }
  for (HostOptions& host : hosts) {
    host.limits.models = std::count_if(hosts.begin(), hosts.end(), [&](const HostOptions& other) {
      return ShareDevice(other.placement, host.placement);
    });
  }
  return hosts;
}

void AddNetworkFlags(CLI::App* command, ServeFlags* flags) {
  ServerOptions* server = &flags->server;
  FlagGroup network(command, "Network");
  network.Add(
      "--listen", &server->listen, "HOST:PORT",
      "Address of the gRPC server. Any address except loopback needs TLS or --allow-plaintext.");
  network.Add(
      "--http-api-listen", &server->http_api_listen, "HOST:PORT",
      "Address of the HTTP API (OpenAI, TEI, TGI and vLLM clients; server/HTTP.md); empty = off. "
      "Any "
      "address except loopback needs TLS or --allow-plaintext.");
  network.AddSwitch("--http-api-page", &server->http_api_page,
                    "Serve a page at / of the HTTP API: the models and a playground for browsers.");
  network.Add("--http-listen", &server->http_listen, "HOST:PORT",
              "Address of the HTTP endpoints /metrics, /healthz and /readyz; empty = off.");
  network.Add("--tls-cert", &server->tls_cert, "FILE",
              "TLS certificate chain (PEM); reloaded when the file changes.");
  network.Add("--tls-key", &server->tls_key, "FILE", "TLS private key (PEM).");
  network.Add(
      "--tls-client-ca", &server->tls_client_ca, "FILE",
      "CA certificates (PEM) for mutual TLS: clients must present a certificate signed by one.");
  network.Add(
      "--api-key-file", &server->api_key_file, "FILE",
      "API keys; the file mode must be 0600. Reloaded on SIGHUP. Each line holds the SHA-256 "
      "digest of a key in hexadecimal and optionally the highest priority of its calls: low, "
      "normal or high (default).");
  network.Add(
      "--admin-listen", &server->admin_listen, "HOST:PORT",
      "Address of the administration service, which loads, replaces and unloads models (server/"
      "ADMIN.md); empty = off. Needs --admin-api-key-file; any address except loopback needs TLS.");
  network.Add("--admin-api-key-file", &server->admin_api_key_file, "FILE",
              "API keys of administrators, in the format of --api-key-file. Reloaded on SIGHUP.");
  network.AddSwitch("--allow-plaintext", &server->allow_plaintext,
                    "Allow listening without TLS on addresses other than loopback.");
  network.Add("--metrics-compat", &flags->metrics_compat, "NAMES",
              "Also export metrics under the names of another server: vllm, or empty.",
              CLI::IsMember({"", "vllm"}));
  network.AddSwitch("--access-log", &flags->access_log,
                    "Log one JSON object per call that has ended: request id, model, method, code, "
                    "tokens and times, without text of inputs or outputs.");
}

void AddLifecycleFlags(CLI::App* command, ServeFlags* flags) {
  FlagGroup lifecycle(command, "Lifecycle");
  const auto seconds = [&](const char* name, double* value, double least, const char* help) {
    lifecycle.Add(name, value, "SECONDS", help, InRange(least, 1e6));
  };
  seconds("--drain-delay", &flags->drain_delay_s, 0.0,
          "Time after SIGTERM in which new calls are still accepted, so that load balancers can "
          "react.");
  seconds("--drain-timeout", &flags->drain_timeout_s, 0.0,
          "Time after --drain-delay in which running calls may finish.");
  seconds("--stall-timeout", &flags->stall_timeout_s, 1.0,
          "Exit with code 70 if an engine makes no step for this long. Time in which the whole "
          "process is stopped does not count. Minimum 1.");
}

}  // namespace

void AddServeFlags(CommandLine& line, CLI::App* command, ServeFlags* flags) {
  AddModelFlags(line, command, flags);
  AddPerModelFlags(command, flags);
  AddCallLimitFlags(command, flags);
  AddNetworkFlags(command, flags);
  AddLifecycleFlags(command, flags);
  line.AddModelSections(command, [flags](const std::vector<ModelSection>& sections) {
    flags->sections = sections;
    for (const ModelSection& section : sections) {
      ServeFlags own = *flags;
      QT_RETURN_IF_ERROR(ApplySection(section, Settings::kAll, &own));
    }
    return absl::OkStatus();
  });
  line.AddConfigNote(command, [flags] {
    std::vector<std::string> notes;
    const absl::StatusOr<std::vector<HostOptions>> hosts = HostsOf(*flags);
    if (!hosts.ok()) return std::string();
    for (const HostOptions& host : *hosts) {
      notes.push_back(LimitsNote(host.directory, host.placement, host.limits));
    }
    return absl::StrJoin(notes, "\n# ");
  });
}

absl::StatusOr<ServerOptions> ServerOptionsOf(const ServeFlags& flags) {
  ServerOptions server = flags.server;
  QT_ASSIGN_OR_RETURN(server.models, HostsOf(flags));
  const bool only_gpus =
      std::all_of(server.models.begin(), server.models.end(),
                  [](const HostOptions& host) { return DeviceOrdinal(host.placement) >= 0; });
  server.threads = flags.threads == 0 ? DefaultThreads(only_gpus) : flags.threads;
  server.default_timeout_us = Micros(std::min(flags.default_timeout_s, flags.max_timeout_s));
  server.max_timeout_us = Micros(flags.max_timeout_s);
  server.drain_delay_us = Micros(flags.drain_delay_s);
  server.drain_timeout_us = Micros(flags.drain_timeout_s);
  server.stall_timeout_us = Micros(flags.stall_timeout_s);
  return server;
}

absl::Status CheckModelSections(const ServeFlags& flags, const ServerOptions& server) {
  for (const ModelSection& section : flags.sections) {
    const auto named = [&](const HostOptions& host) { return host.name == section.name; };
    if (std::any_of(server.models.begin(), server.models.end(), named)) continue;
    const std::string names =
        absl::StrJoin(server.models, ", ",
                      [](std::string* out, const HostOptions& host) { out->append(host.name); });
    return absl::InvalidArgumentError(
        absl::StrCat(section.where, ": no model of this name is served; served: ", names));
  }
  return absl::OkStatus();
}

}  // namespace quintet
