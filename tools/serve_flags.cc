#include "tools/serve_flags.h"

#include <algorithm>
#include <filesystem>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "tools/cores.h"
#include "tools/flag_values.h"
#include "tools/session.h"
#include "tools/version.h"

namespace quintet {
namespace {

int64_t Micros(double seconds) { return static_cast<int64_t>(seconds * 1e6); }

// The cache is in the host's memory. The host would wait for a GPU to bring it every input's
// states, and again for those of an input found to go back: that is worth it only where inputs
// often come again.
int64_t DefaultEncoderCacheBytes(const Placement& placement) {
  return DeviceOrdinal(placement) < 0 ? int64_t{256} << 20 : 0;
}

// The last part of a path, which may end in a slash.
std::string NameOf(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

HostOptions HostOf(const ServeFlags& flags, const std::string& model) {
  HostOptions host;
  const size_t equals = model.find('=');
  host.directory = equals == std::string::npos ? model : model.substr(equals + 1);
  host.name = equals == std::string::npos ? NameOf(host.directory) : model.substr(0, equals);
  // A directory that cannot be read is reported when it is loaded.
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(host.directory);
  host.load.weights = WeightTypeOf(flags.placement, config.ok() ? *config : ModelConfig());
  host.ignore_generation_fields = flags.ignore_generation_fields;
  host.gpu = DeviceOrdinal(flags.placement);
  host.memory = {.cache_bytes = flags.cache_mib << 20, .max_bytes = flags.max_memory_mib << 20};
  host.load.limits.max_encode_tokens =
      std::max<int64_t>(flags.max_batch_tokens, flags.decoding.max_input_tokens);
  host.load.limits.max_step_sequences = flags.engine.max_running_sequences;
  host.engine = flags.engine;
  host.engine.encoder_cache_bytes =
      flags.encoder_cache_bytes.value_or(DefaultEncoderCacheBytes(flags.placement));
  host.decoding = flags.decoding;
  host.vllm_metrics = flags.metrics_compat == "vllm";
  host.version = Version();
  return host;
}

void AddModelFlags(CommandLine& line, CLI::App* command, ServeFlags* flags) {
  constexpr char kGroup[] = "Model";
  line.Require(
      command
          ->add_option(
              "--model", flags->models,
              "Model directory, or NAME=DIR; once for each model. Without a name: the directory's.")
          ->allow_extra_args(false)
          ->type_name("[NAME=]DIR")
          ->group(kGroup));
  AddPlacementFlags(command, &flags->placement);
  AddThreadsFlag(command, &flags->threads)->group(kGroup);
  command
      ->add_option("--cache-memory", flags->cache_mib,
                   "Keys and values of running sequences, for each model.")
      ->check(InRange(int64_t{1}, int64_t{1} << 24))
      ->type_name("MIB")
      ->group(kGroup);
  AddMaxMemoryFlag(command, &flags->max_memory_mib)->group(kGroup);
  AddIgnoreGenerationFieldsFlag(command, &flags->ignore_generation_fields);
}

constexpr char kLimits[] = "Limits";

// Its default follows --device, in --help and --print-config too.
void AddEncoderCacheFlag(CLI::App* command, ServeFlags* flags) {
  const auto text = [](const Placement& placement) {
    return absl::StrCat(DefaultEncoderCacheBytes(placement));
  };
  CLI::Option* const option =
      command
          ->add_option_function<int64_t>(
              "--encoder-cache-bytes",
              [flags](const int64_t& bytes) { flags->encoder_cache_bytes = bytes; },
              "Encoder outputs kept for inputs that come again; 0: none. They are kept in the "
              "host's memory, to which a GPU has to bring those of every input: the default is "
              "268435456 (256 MiB) on a CPU, 0 on a GPU.")
          ->check(InRange(int64_t{0}, int64_t{1} << 40))
          ->type_name("BYTES")
          ->default_str(text(flags->placement))
          ->group(kLimits);
  command->get_option("--device")->each([option, text](const std::string& device) {
    option->default_str(text({.device = device}));
  });
}

void AddLimitFlags(CLI::App* command, ServeFlags* flags) {
  const auto add = [&](const char* name, auto* value, auto low, auto high, const char* unit,
                       const char* help) {
    using T = std::remove_pointer_t<decltype(value)>;
    command->add_option(name, *value, help)
        ->check(InRange(static_cast<T>(low), static_cast<T>(high)))
        ->type_name(unit)
        ->group(kLimits);
  };
  constexpr int64_t kMany = int64_t{1} << 30;
  EngineLimits* engine = &flags->engine;
  add("--max-queue", &engine->max_queue_requests, int64_t{1}, int64_t{1} << 20, "REQUESTS",
      "Requests that may wait, for each model.");
  add("--max-queue-tokens", &engine->max_queue_tokens, int64_t{1}, kMany, "TOKENS",
      "Input tokens that may wait.");
  add("--max-running", &engine->max_running_sequences, int64_t{1}, int64_t{4096}, "SEQUENCES",
      "Sequences decoded at once; each beam counts.");
  AddEncoderCacheFlag(command, flags);
  add("--max-input-tokens", &flags->decoding.max_input_tokens, 1u, 1u << 24, "TOKENS",
      "Longest input accepted.");
  add("--limit-new-tokens", &flags->decoding.max_new_tokens, 1u, 1u << 20, "TOKENS",
      "Most new tokens a request may ask for.");
  add("--max-batch-tokens", &flags->max_batch_tokens, int64_t{1}, int64_t{1} << 24, "TOKENS",
      "Tokens encoded at once; on a GPU also of prompts in a step.");
  add("--prefill-share", &engine->prefill_share, 0.0, 1000.0, "SHARE",
      "Time for encoding inputs and reading prompts in a step, as a share of what decoding takes, "
      "while sequences are being decoded, so that they keep their pace; 0: no limit.");
  add("--max-message-bytes", &flags->server.max_message_bytes, int64_t{1024}, kMany, "BYTES",
      "Longest message accepted.");
  add("--default-timeout", &flags->default_timeout_s, 0.001, 1e6, "SECONDS",
      "Of calls without a deadline; at most --max-timeout.");
  add("--max-timeout", &flags->max_timeout_s, 0.001, 1e6, "SECONDS",
      "Longer deadlines are cut to it.");
}

void AddNetworkFlags(CLI::App* command, ServeFlags* flags) {
  constexpr char kGroup[] = "Network";
  ServerOptions* server = &flags->server;
  const auto add = [&](const char* name, std::string* value, const char* unit, const char* help) {
    command->add_option(name, *value, help)->type_name(unit)->group(kGroup);
  };
  add("--listen", &server->listen, "HOST:PORT",
      "gRPC. An address other than loopback needs TLS or --allow-plaintext.");
  add("--http-listen", &server->http_listen, "HOST:PORT",
      "/metrics, /healthz and /readyz; empty: none.");
  add("--tls-cert", &server->tls_cert, "FILE",
      "PEM certificate chain; read again when it changes.");
  add("--tls-key", &server->tls_key, "FILE", "PEM private key.");
  add("--tls-client-ca", &server->tls_client_ca, "FILE",
      "PEM; clients must show a certificate of this authority.");
  add("--api-key-file", &server->api_key_file, "FILE",
      "API keys, mode 0600; read again on SIGHUP. Each line: a key's SHA-256 digest in "
      "hexadecimal, then optionally the highest priority of its calls: low, normal or high "
      "(default).");
  command
      ->add_flag("--allow-plaintext", server->allow_plaintext, "Listen without TLS on any address.")
      ->group(kGroup);
  command
      ->add_option("--metrics-compat", flags->metrics_compat,
                   "Export vLLM's metric names as well: vllm.")
      ->check(CLI::IsMember({"", "vllm"}))
      ->type_name("NAMES")
      ->group(kGroup);
  const auto seconds = [&](const char* name, double* value, double least, const char* help) {
    command->add_option(name, *value, help)
        ->check(InRange(least, 1e6))
        ->type_name("SECONDS")
        ->group("Life");
  };
  seconds("--drain-delay", &flags->drain_delay_s, 0.0,
          "After SIGTERM: how long calls are still taken, for balancers to notice.");
  seconds("--drain-timeout", &flags->drain_timeout_s, 0.0,
          "After that: how long running calls may take.");
  seconds("--stall-timeout", &flags->stall_timeout_s, 1.0,
          "An engine without a step for this long ends the process with code 70; time in which the "
          "whole process is stopped does not count.");
}

}  // namespace

void AddServeFlags(CommandLine& line, CLI::App* command, ServeFlags* flags) {
  AddModelFlags(line, command, flags);
  AddLimitFlags(command, flags);
  AddNetworkFlags(command, flags);
}

ServerOptions ServerOptionsOf(const ServeFlags& flags) {
  ServerOptions server = flags.server;
  server.threads = flags.threads == 0 ? AvailableCores() : flags.threads;
  server.default_timeout_us = Micros(std::min(flags.default_timeout_s, flags.max_timeout_s));
  server.max_timeout_us = Micros(flags.max_timeout_s);
  server.drain_delay_us = Micros(flags.drain_delay_s);
  server.drain_timeout_us = Micros(flags.drain_timeout_s);
  server.stall_timeout_us = Micros(flags.stall_timeout_s);
  for (const std::string& model : flags.models) server.models.push_back(HostOf(flags, model));
  return server;
}

}  // namespace quintet
