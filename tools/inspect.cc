// quintet inspect: prints the contents of a model directory, the memory needed to run the model,
// and warnings.
#include "models/inspect.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/kv_pool.h"
#include "engine/memory_plan.h"
#include "models/adapters/adapter.h"
#include "models/adapters/adapter_summary.h"
#include "models/checkpoint/find_model.h"
#include "models/model.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"
#include "tools/adapter_report.h"
#include "tools/flag_values.h"
#include "tools/session.h"

namespace quintet {
namespace {

struct InspectFlags {
  std::string model, tokenizer, adapter, output = "text";
  Placement placement;
  int64_t batch = 1, input_tokens = 512, output_tokens = 256, beams = 1;
  bool follow_symlinks = false;
};

const char* PositionName(PositionEncoding position) {
  switch (position) {
    case PositionEncoding::kNone:
      return "none";
    case PositionEncoding::kT5:
      return "t5 buckets";
    case PositionEncoding::kAlibi:
      return "alibi";
    case PositionEncoding::kRope:
      return "rotary";
    case PositionEncoding::kFire:
      return "fire";
    case PositionEncoding::kLearned:
      return "learned";
  }
  return "?";
}

const char* ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kRelu:
      return "relu";
    case Activation::kGeluTanh:
      return "gelu (tanh)";
    case Activation::kGeluErf:
      return "gelu (erf)";
    case Activation::kSilu:
      return "silu";
    case Activation::kTanh:
      return "tanh";
  }
  return "?";
}

// Returns the number of KV cache pages that the engine reserves for one request. The beams of a
// request share the pages of the encoder output or of the prompt.
int64_t RequestPages(const InspectFlags& flags, const ModelConfig& config, int64_t page_size) {
  const int64_t prompt = config.has_encoder() ? 1 : flags.input_tokens;
  const int64_t own =
      SlotLayout(prompt, flags.output_tokens - 1, flags.beams, page_size).PagesNeeded();
  const int64_t source =
      config.has_encoder() ? KvPool(0, page_size).PagesFor(flags.input_tokens) : 0;
  return own + source;
}

ModelLimits LimitsFor(const InspectFlags& flags, const ModelConfig& config, bool on_gpu) {
  ModelLimits limits;
  limits.max_encode_tokens = std::max(
      flags.input_tokens, std::min(limits.max_encode_tokens, flags.batch * flags.input_tokens));
  limits.max_step_sequences = flags.batch * flags.beams;
  limits.max_step_tokens = MaxStepTokens(limits, config, on_gpu);
  limits.cache_pages =
      config.has_decoder() ? flags.batch * RequestPages(flags, config, limits.page_size) : 1;
  return limits;
}

LoadOptions OptionsFor(const InspectFlags& flags, const ModelConfig& config, Device* device) {
  LoadOptions options;
  options.weights = WeightTypeOf(flags.placement, config);
  options.fp8_cache = HasFp8Cache(flags.placement);
  options.device = device;
  options.follow_symlinks = flags.follow_symlinks;
  if (!flags.adapter.empty()) options.adapters = {{"adapter", flags.adapter}};
  return options;
}

// The limits that a command chooses automatically if no flag sets them.
struct AutomaticLimits {
  const char* command;
  LimitRequest request;
  LoadOptions options;
};

// Plans the automatic limits of generate and serve. Omits a command whose limits cannot be planned,
// for example because the GPU's memory is full.
std::vector<AutomaticLimits> PlanAutomatic(const InspectFlags& flags, const ModelConfig& config,
                                           Device* device) {
  ThreadPool pool(1);
  std::vector<AutomaticLimits> planned;
  for (const Workload workload : {Workload::kJob, Workload::kServing}) {
    AutomaticLimits limits{workload == Workload::kJob ? "generate" : "serve",
                           {.workload = workload},
                           OptionsFor(flags, config, device)};
    if (PlanMemory(flags.model, limits.request, &limits.options, &pool).ok()) {
      planned.push_back(std::move(limits));
    }
  }
  return planned;
}

absl::StatusOr<MemoryPlan> MeasureFor(const InspectFlags& flags, const ModelConfig& config,
                                      Device* device) {
  LoadOptions options = OptionsFor(flags, config, device);
  options.limits = LimitsFor(flags, config, device != nullptr);
  ThreadPool pool(1);
  return MeasureMemory(flags.model, options, &pool);
}

std::string Bytes(int64_t bytes) {
  if (bytes < int64_t{10} << 10) return absl::StrCat(bytes, " B");
  if (bytes < int64_t{10} << 20) return absl::StrFormat("%.1f KiB", bytes / 1024.0);
  return absl::StrFormat("%.1f MiB", bytes / 1048576.0);
}

std::string Ids(const std::vector<int32_t>& ids) {
  return ids.empty() ? "none" : absl::StrJoin(ids, ", ");
}
std::string Id(int32_t id) { return id < 0 ? "none" : absl::StrCat(id); }

std::string EncoderAttention(const ModelConfig& c) {
  const std::string window = absl::StrCat("radius ", c.local_radius);
  if (c.global_block == 0) return absl::StrCat("local, ", window);
  return absl::StrCat("transient-global, ", window, ", blocks of ", c.global_block);
}

void PrintModel(const Inspection& in, const MemoryPlan& memory) {
  const ModelConfig& c = in.config;
  PrintField("architecture", absl::StrCat(FamilyName(c.family), ", head: ", HeadName(c.head)));
  PrintField("layers", absl::StrCat("encoder ", c.encoder_layers, ", decoder ", c.decoder_layers));
  PrintField("sizes", absl::StrCat("vocab ", c.vocab, ", d_model ", c.d_model, ", heads ", c.heads,
                                   " x ", c.head_dim, ", d_ff ", c.d_ff));
  PrintField("feed-forward", absl::StrCat(c.gated ? "gated " : "", ActivationName(c.activation)));
  PrintField(
      "positions",
      absl::StrCat(PositionName(c.position),
                   c.position_limit() > 0 ? absl::StrCat(", at most ", c.position_limit()) : ""));
  if (c.local_radius > 0) PrintField("encoder attention", EncoderAttention(c));
  PrintField("logits", c.scale_logits.value_or(false) ? "scaled by d_model^-0.5" : "not scaled");
  PrintField("parameters", absl::StrCat(memory.model.parameters));
  std::vector<std::string> types;
  for (const auto& [type, values] : in.stored_values)
    types.push_back(absl::StrCat(type, " ", values));
  PrintField("stored values", absl::StrJoin(types, ", "));
  PrintField("converted", c.converted() ? c.converted_dtype : "no");
  if (!in.weights_sha256.empty()) PrintField("weights SHA-256", in.weights_sha256);
  PrintField("special ids", absl::StrCat("eos ", Ids(c.eos_ids), "; pad ", Id(c.pad_id), "; bos ",
                                         Id(c.bos_id), "; decoder start ", Id(c.decoder_start_id)));
  const TokenizerSummary& t = in.tokenizer;
  PrintField("tokenizer",
             t.file.empty()
                 ? "none"
                 : absl::StrCat(t.file, ", ", t.vocab, " ids; eos ", Id(t.eos_id), "; pad ",
                                Id(t.pad_id), "; unk ", Id(t.unk_id), "; bos ", Id(t.bos_id)));
}

void PrintText(const InspectFlags& flags, const Inspection& in, const MemoryPlan& memory,
               const std::vector<AutomaticLimits>& automatic,
               const std::optional<AdapterSummary>& adapter) {
  PrintModel(in, memory);
  std::printf("\nfiles\n");
  for (const auto& [name, bytes] : in.files) {
    std::printf("  %-40s %s\n", name.c_str(), Bytes(bytes).c_str());
  }
  std::printf("\nmemory on %s, weights as %s, %lld x (%lld + %lld) tokens, beams %lld\n",
              flags.placement.device.c_str(),
              WeightTypeName(WeightTypeOf(flags.placement, in.config)),
              static_cast<long long>(flags.batch), static_cast<long long>(flags.input_tokens),
              static_cast<long long>(flags.output_tokens), static_cast<long long>(flags.beams));
  PrintField("  weights", Bytes(memory.model.weights));
  const int64_t adapters = memory.model.adapters + memory.model.merged_weights;
  if (adapters > 0) PrintField("  adapters", Bytes(adapters));
  PrintField("  keys, values", absl::StrCat(Bytes(memory.model.cache), " (", memory.pages,
                                            " pages of ", ModelLimits().page_size, " tokens, ",
                                            CacheTypeName(flags.placement, in.config), ")"));
  PrintField("  workspace", Bytes(memory.model.workspace));
  PrintField("  search", Bytes(memory.search));
  if (memory.runtime > 0) PrintField("  runtime", Bytes(memory.runtime));
  PrintField("  total", Bytes(memory.total()));
  std::printf("\nautomatic limits\n");
  for (const AutomaticLimits& limits : automatic) {
    PrintField(absl::StrCat("  ", limits.command).c_str(),
               DescribeLimits(limits.request, limits.options, in.config));
  }
  if (adapter.has_value()) {
    std::printf("\nadapter\n");
    PrintAdapter(*adapter);
  }
  std::printf("\nwarnings%s\n", in.warnings.empty() ? ": none" : "");
  for (const std::string& warning : in.warnings) std::printf("  %s\n", warning.c_str());
}

nlohmann::json ConfigJson(const ModelConfig& c) {
  return {{"family", FamilyName(c.family)},
          {"head", HeadName(c.head)},
          {"vocab", c.vocab},
          {"d_model", c.d_model},
          {"heads", c.heads},
          {"head_dim", c.head_dim},
          {"d_ff", c.d_ff},
          {"encoder_layers", c.encoder_layers},
          {"decoder_layers", c.decoder_layers},
          {"activation", ActivationName(c.activation)},
          {"gated", c.gated},
          {"positions", PositionName(c.position)},
          {"local_radius", c.local_radius},
          {"global_block", c.global_block},
          {"scale_logits", c.scale_logits.value_or(false)},
          {"converted_dtype", c.converted_dtype},
          {"eos_ids", c.eos_ids},
          {"pad_id", c.pad_id},
          {"bos_id", c.bos_id},
          {"decoder_start_id", c.decoder_start_id}};
}

void PrintJson(const InspectFlags& flags, const Inspection& in, const MemoryPlan& memory,
               const std::vector<AutomaticLimits>& automatic,
               const std::optional<AdapterSummary>& adapter) {
  nlohmann::json report = {{"config", ConfigJson(in.config)},
                           {"parameters", memory.model.parameters},
                           {"stored_values", in.stored_values},
                           {"weights_sha256", in.weights_sha256},
                           {"warnings", in.warnings}};
  for (const auto& [name, bytes] : in.files) report["files"][name] = bytes;
  if (adapter.has_value()) report["adapter"] = AdapterJson(*adapter);
  const TokenizerSummary& t = in.tokenizer;
  report["tokenizer"] = {{"file", t.file},     {"vocab", t.vocab},   {"eos_id", t.eos_id},
                         {"pad_id", t.pad_id}, {"unk_id", t.unk_id}, {"bos_id", t.bos_id}};
  report["memory"] = {{"device", flags.placement.device},
                      {"dtype", WeightTypeName(WeightTypeOf(flags.placement, in.config))},
                      {"cache_dtype", CacheTypeName(flags.placement, in.config)},
                      {"batch", flags.batch},
                      {"input_tokens", flags.input_tokens},
                      {"output_tokens", flags.output_tokens},
                      {"beams", flags.beams},
                      {"weights_bytes", memory.model.weights},
                      {"adapters_bytes", memory.model.adapters + memory.model.merged_weights},
                      {"cache_bytes", memory.model.cache},
                      {"cache_pages", memory.pages},
                      {"workspace_bytes", memory.model.workspace},
                      {"search_bytes", memory.search},
                      {"runtime_bytes", memory.runtime},
                      {"total_bytes", memory.total()}};
  for (const AutomaticLimits& limits : automatic) {
    const ModelLimits& planned = limits.options.limits;
    report["automatic_limits"][limits.command] = {{"max_running", planned.max_step_sequences},
                                                  {"max_batch_tokens", planned.max_encode_tokens},
                                                  {"cache_pages", planned.cache_pages},
                                                  {"page_tokens", planned.page_size}};
  }
  // Print the report. File names in it may contain bytes that are not UTF-8;
  // error_handler_t::replace makes dump write U+FFFD for them instead of throwing.
  std::printf("%s\n", report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

// Prints the contents of an adapter, without a model.
int RunAdapter(const InspectFlags& flags) {
  const absl::StatusOr<AdapterSummary> summary = InspectAdapter(flags.model, flags.follow_symlinks);
  if (!summary.ok()) return FailModel(flags.model, summary.status());
  if (flags.output == "json") {
    std::printf("%s\n", AdapterJson(*summary)
                            .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
  } else {
    PrintAdapter(*summary);
  }
  return kExitDone;
}

int Run(InspectFlags flags) {
  if (IsAdapterPath(flags.model)) return RunAdapter(flags);
  absl::StatusOr<std::string> directory = FindModel(flags.model, flags.follow_symlinks);
  if (!directory.ok()) return FailModel(flags.model, directory.status());
  flags.model = *std::move(directory);
  absl::StatusOr<Inspection> inspection =
      InspectModel(flags.model, flags.tokenizer, flags.follow_symlinks);
  if (!inspection.ok()) return FailModel(flags.model, inspection.status());
  const ModelConfig& config = inspection->config;
  const int64_t positions = config.position_limit();
  if (positions > 0 && flags.input_tokens + flags.output_tokens > positions) {
    inspection->warnings.push_back(
        absl::StrCat("memory: ", flags.input_tokens, " + ", flags.output_tokens,
                     " tokens are beyond the model's ", positions, " positions"));
  }
  const absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(&flags.placement);
  if (const std::string choice = DescribeAutoDevice(flags.placement, config); !choice.empty()) {
    spdlog::info("{}", choice);
  }
  if (!device.ok()) return Fail(kExitUsage, device.status());
  absl::StatusOr<MemoryPlan> memory = MeasureFor(flags, inspection->config, device->get());
  if (absl::IsUnimplemented(memory.status()) && !flags.adapter.empty()) {
    InspectFlags merged = flags;  // the adapter changes a head: it can only be merged
    merged.adapter.clear();
    memory = MeasureFor(merged, inspection->config, device->get());
  }
  if (!memory.ok()) return FailModel(flags.model, memory.status());
  const std::vector<AutomaticLimits> automatic = PlanAutomatic(flags, config, device->get());
  std::optional<AdapterSummary> adapter;
  if (!flags.adapter.empty()) {
    // Unlike InspectAdapter, ReadAdapter reads the values: it finds all errors that loading finds.
    const absl::Status fits = ReadAdapter(flags.adapter, config, flags.follow_symlinks).status();
    if (!fits.ok()) return FailModel(flags.adapter, fits);
    absl::StatusOr<AdapterSummary> summary = InspectAdapter(flags.adapter, flags.follow_symlinks);
    if (!summary.ok()) return FailModel(flags.adapter, summary.status());
    adapter = *std::move(summary);
  }
  if (flags.output == "json") {
    PrintJson(flags, *inspection, *memory, automatic, adapter);
  } else {
    PrintText(flags, *inspection, *memory, automatic, adapter);
  }
  return kExitDone;
}

}  // namespace

void AddInspectCommand(CommandLine& line) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = line.AddCommand(
      {"inspect",
       "Show the contents of a model directory and the memory it needs, or of an adapter.",
       "quintet inspect t5-base --batch 8 --beams 4 --dtype int8"},
      [flags] { return Run(*flags); });
  AddModelArgument(line, command, &flags->model);
  AddTokenizerFlag(command, &flags->tokenizer);
  AddFollowSymlinksFlag(command, &flags->follow_symlinks);
  command
      ->add_option(
          "--adapter", flags->adapter,
          "LoRA adapter to check against the model, in PEFT's or kohya's format. Without a "
          "model, pass the adapter as --model.")
      ->type_name("PATH")
      ->group("Model");
  const auto count = [&](const char* name, int64_t* value, int64_t most, const char* unit,
                         const char* text) {
    command->add_option(name, *value, text)
        ->check(InRange(int64_t{1}, most))
        ->type_name(unit)
        ->group("Memory");
  };
  count("--batch", &flags->batch, 4096, "REQUESTS",
        "Number of requests that run concurrently. Range [1, 4096].");
  count("--input-tokens", &flags->input_tokens, int64_t{1} << 24, "TOKENS",
        "Input length of each request.");
  count("--output-tokens", &flags->output_tokens, int64_t{1} << 20, "TOKENS",
        "Output length of each request.");
  count("--beams", &flags->beams, 32, "BEAMS", "Number of beams per request. Range [1, 32].");
  AddPlacementFlags(command, &flags->placement);
  command->add_option("--output", flags->output, "Format of the report: text or json.")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT")
      ->group("Report");
}

}  // namespace quintet
