// quintet bench: measures the speed of the whole engine on random token ids. Every run generates or
// scores exactly the requested number of tokens.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/placement.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/device_waits.h"
#include "models/checkpoint/find_model.h"
#include "nlohmann/json.hpp"
#include "tools/conditions.h"
#include "tools/decoding_flags.h"
#include "tools/flag_values.h"
#include "tools/session.h"
#include "tools/version.h"

namespace quintet {
namespace {

struct BenchFlags {
  ModelFlags model;
  std::vector<std::string> modes = {"encode", "generate"};
  std::vector<int64_t> batches = {1, 8}, beams = {1}, input_tokens = {128};
  uint32_t new_tokens = 64;
  int64_t targets = 1, target_tokens = 32;
  int64_t repetitions = 5, warmup = 1;
  uint64_t seed = 1;
  DecodingFlags decoding;
  std::string output = "text", json_file;
};

struct Shape {
  bool encode = false;
  Pooling pooling = Pooling::kNone;
  int64_t batch = 0, beams = 1, input_tokens = 0;
  uint32_t new_tokens = 0;
  int64_t targets = 0, target_tokens = 0;  // mode score only; 0 in other modes

  bool score() const { return targets > 0; }
  bool generate() const { return !encode && !score(); }
  // Number of tokens that one run with this shape generates or scores.
  int64_t output_tokens() const {
    return batch * (score() ? targets * target_tokens : int64_t{new_tokens});
  }
};

struct Measurement {
  std::vector<double> wall_ms, cpu_ms;
  std::vector<double> host_us;  // host time of each step without GPU waits; empty on a CPU
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double CpuMs() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

class CountingSink : public ResponseSink {
 public:
  void OnDone(absl::StatusOr<Result> result) override {
    if (!result.ok()) {
      error_ = result.status();
      return;
    }
    ++done_;
    output_tokens_ += result->output_tokens;
  }
  int64_t done() const { return done_; }
  int64_t output_tokens() const { return output_tokens_; }
  const absl::Status& error() const { return error_; }

 private:
  int64_t done_ = 0, output_tokens_ = 0;
  absl::Status error_;
};

absl::StatusOr<Request> MakeRequest(const Session& session, const Shape& shape,
                                    const DecodingFlags& flags, std::mt19937_64* random) {
  Request request;
  // Draw no prompt token from the lowest ids, because special tokens usually have low ids.
  const int32_t first = static_cast<int32_t>(std::min<int64_t>(100, session.config.vocab / 2));
  std::uniform_int_distribution<int32_t> id(first, static_cast<int32_t>(session.config.vocab - 1));
  for (int64_t i = 0; i < shape.input_tokens; ++i) request.input.push_back(id(*random));
  if (shape.score()) {
    request.kind = RequestKind::kScore;
    request.targets.resize(static_cast<size_t>(shape.targets));
    for (std::vector<int32_t>& target : request.targets) {
      for (int64_t i = 0; i < shape.target_tokens; ++i) target.push_back(id(*random));
    }
    return request;
  }
  if (shape.encode) {
    request.kind = RequestKind::kEncode;
    request.pooling = shape.pooling;
    return request;
  }
  QT_ASSIGN_OR_RETURN(DecodingRequest decoding, BuildDecodingRequest(flags, nullptr));
  const bool samples = decoding.do_sample.value_or(false) && decoding.temperature.value_or(1) != 0;
  if (samples) decoding.seed = (*random)();
  decoding.max_new_tokens = shape.new_tokens;
  decoding.num_beams = static_cast<uint32_t>(shape.beams);
  decoding.ignore_eos = true;
  DecodingLimits limits;
  limits.max_input_tokens = static_cast<uint32_t>(shape.input_tokens);
  QT_ASSIGN_OR_RETURN(request.decoding,
                      ResolveDecoding(decoding, {}, session.config, limits, request.input));
  return request;
}

// Records the host time of each engine step in Measurement::host_us, without the time in which the
// host waits for the GPU. Does nothing if `device` is null (a run on the CPU) or `measurement` is
// null (a warm-up run).
class StepTimer {
 public:
  StepTimer(const Device* device, Measurement* measurement)
      : device_(device), measurement_(measurement) {
    if (device_ != nullptr) last_ns_ = OwnNs();
  }
  void Record() {
    if (device_ == nullptr || measurement_ == nullptr) return;
    const int64_t now_ns = OwnNs();
    measurement_->host_us.push_back(static_cast<double>(now_ns - last_ns_) * 1e-3);
    last_ns_ = now_ns;
  }

 private:
  int64_t OwnNs() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - WaitedNs(*device_);
  }

  const Device* device_;
  Measurement* measurement_;
  int64_t last_ns_ = 0;
};

absl::Status RunOnce(Session& session, const Shape& shape, const DecodingFlags& flags,
                     std::mt19937_64* random, Measurement* measurement) {
  std::vector<Request> requests;
  auto sink = std::make_shared<CountingSink>();
  const std::vector<AdapterHandle> adapters = session.adapters.handles();
  for (int64_t i = 0; i < shape.batch; ++i) {
    QT_ASSIGN_OR_RETURN(Request request, MakeRequest(session, shape, flags, random));
    if (!adapters.empty()) request.adapter = adapters[static_cast<size_t>(i) % adapters.size()];
    request.sink = sink;
    requests.push_back(std::move(request));
  }
  const double cpu = CpuMs();
  const auto begin = std::chrono::steady_clock::now();
  for (Request& request : requests) {
    QT_RETURN_IF_ERROR(session.engine->Submit(std::move(request)).status());
  }
  StepTimer timer(session.device.get(), measurement);
  for (bool more = true; more;) {
    more = session.engine->Step();
    timer.Record();
  }
  const auto end = std::chrono::steady_clock::now();
  if (measurement != nullptr) {
    measurement->wall_ms.push_back(std::chrono::duration<double, std::milli>(end - begin).count());
    measurement->cpu_ms.push_back(CpuMs() - cpu);
  }
  if (!sink->error().ok()) return sink->error();
  const int64_t expected = shape.output_tokens();
  if (sink->done() != shape.batch || sink->output_tokens() != expected) {
    return absl::InternalError(absl::StrCat("expected ", shape.batch, " results with ", expected,
                                            " tokens, got ", sink->done(), " with ",
                                            sink->output_tokens()));
  }
  return absl::OkStatus();
}

std::vector<Shape> Shapes(const BenchFlags& flags) {
  std::vector<Shape> shapes;
  for (const std::string& mode : flags.modes) {
    for (const int64_t input_tokens : flags.input_tokens) {
      for (const int64_t batch : flags.batches) {
        if (mode == "score") {
          shapes.push_back({.batch = batch,
                            .input_tokens = input_tokens,
                            .targets = flags.targets,
                            .target_tokens = flags.target_tokens});
          continue;
        }
        if (mode != "generate") {
          shapes.push_back({.encode = true,
                            .pooling = mode == "encode" ? Pooling::kNone : Pooling::kFirst,
                            .batch = batch,
                            .input_tokens = input_tokens});
          continue;
        }
        for (const int64_t beams : flags.beams) {
          shapes.push_back({.batch = batch,
                            .beams = beams,
                            .input_tokens = input_tokens,
                            .new_tokens = flags.new_tokens});
        }
      }
    }
  }
  return shapes;
}

const char* ModeOf(const Shape& shape) {
  if (shape.score()) return "score";
  if (!shape.encode) return "generate";
  return shape.pooling == Pooling::kNone ? "encode" : "encode-first";
}

nlohmann::ordered_json Row(const Shape& shape, const Measurement& measurement) {
  const double wall_ms = Median(measurement.wall_ms);
  nlohmann::ordered_json row = {{"mode", ModeOf(shape)},
                                {"batch", shape.batch},
                                {"num_beams", shape.beams},
                                {"input_tokens", shape.input_tokens},
                                {"new_tokens", shape.new_tokens},
                                {"wall_ms", wall_ms},
                                {"cpu_ms", Median(measurement.cpu_ms)},
                                {"all_wall_ms", measurement.wall_ms}};
  const double tokens =
      static_cast<double>(shape.encode ? shape.batch * shape.input_tokens : shape.output_tokens());
  row["tokens_per_s"] = tokens / wall_ms * 1e3;
  if (shape.generate()) row["ms_per_step"] = wall_ms / shape.new_tokens;
  if (shape.score()) {
    row["targets"] = shape.targets;
    row["target_tokens"] = shape.target_tokens;
  }
  if (!measurement.host_us.empty()) row["host_us_per_step"] = Median(measurement.host_us);
  return row;
}

void PrintRow(const nlohmann::ordered_json& row) {
  absl::PrintF("%-12s %5d %5d %7d %5d %11.2f %11.2f %12.1f", row["mode"].get<std::string>(),
               row["batch"].get<int64_t>(), row["num_beams"].get<int64_t>(),
               row["input_tokens"].get<int64_t>(), row["new_tokens"].get<int64_t>(),
               row["wall_ms"].get<double>(), row["cpu_ms"].get<double>(),
               row["tokens_per_s"].get<double>());
  if (row.contains("host_us_per_step")) {
    absl::PrintF("  %6.1f us host/step", row["host_us_per_step"].get<double>());
  }
  absl::PrintF("\n");
  std::fflush(stdout);
}

absl::StatusOr<nlohmann::ordered_json> Measure(Session& session, const BenchFlags& flags) {
  nlohmann::ordered_json report = {{"conditions", SessionConditions(session)},
                                   {"rows", nlohmann::ordered_json::array()}};
  const bool text = flags.output == "text";
  if (text) {
    const nlohmann::ordered_json& c = report["conditions"];
    absl::PrintF("quintet %s (%s), %s, %d threads, %s, %.1f M parameters, loaded in %.2f s\n",
                 Version(), Commit(), c["cpu"].get<std::string>(), session.flags.threads,
                 c["dtype"].get<std::string>(),
                 static_cast<double>(session.model->parameters()) / 1e6, session.load_seconds);
    absl::PrintF("mode         batch beams  input   new     wall ms      cpu ms     tokens/s\n");
  }
  std::mt19937_64 random(flags.seed);
  for (const Shape& shape : Shapes(flags)) {
    Measurement measurement;
    for (int64_t i = 0; i < flags.warmup + flags.repetitions; ++i) {
      QT_RETURN_IF_ERROR(RunOnce(session, shape, flags.decoding, &random,
                                 i < flags.warmup ? nullptr : &measurement));
    }
    report["rows"].push_back(Row(shape, measurement));
    if (text) PrintRow(report["rows"].back());
  }
  report["peak_bytes"] = PeakBytes();
  report["device_bytes"] = DeviceBytes(session);
  return report;
}

// Checks the decoding flags against the model: builds one request for every Shape (combination of
// mode, input length, batch size, ...) to be measured and returns the first error.
absl::Status CheckShapes(const Session& session, const BenchFlags& flags) {
  std::mt19937_64 random(flags.seed);
  for (const Shape& shape : Shapes(flags)) {
    QT_RETURN_IF_ERROR(MakeRequest(session, shape, flags.decoding, &random).status());
  }
  return absl::OkStatus();
}

// Raises the limits in `model` (input tokens, running sequences, KV cache) so that they suffice for
// the largest shape.
absl::Status MakeRoom(const BenchFlags& flags, ModelFlags* model) {
  QT_ASSIGN_OR_RETURN(const std::string directory, FindModel(model->model, model->follow_symlinks));
  QT_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(directory));
  // The device, and with it the type of a cache that is not fp8, is not known yet.
  const int64_t value_bytes = HasFp8Cache(model->placement) ? 1 : 4;
  const auto token_bytes =
      static_cast<double>(2 * config.decoder_layers * config.inner() * value_bytes);
  constexpr int64_t kLeastRunning = 64, kLeastCacheMib = 1024;
  for (const Shape& shape : Shapes(flags)) {
    model->max_input_tokens = std::max(model->max_input_tokens, shape.input_tokens);
    model->max_running = std::max({model->max_running, kLeastRunning, shape.batch * shape.beams});
    constexpr int64_t kSlack = 64;  // tokens, for partly filled pages
    const double own = static_cast<double>(
        shape.score() ? shape.targets * (shape.target_tokens + kSlack)
                      : shape.beams * (static_cast<int64_t>(shape.new_tokens) + kSlack));
    const double tokens =
        static_cast<double>(shape.batch) * (static_cast<double>(shape.input_tokens + kSlack) + own);
    if (shape.encode) continue;
    model->cache_mib = std::max({model->cache_mib, kLeastCacheMib,
                                 static_cast<int64_t>(tokens * token_bytes / 1048576.0) + 1});
  }
  return absl::OkStatus();
}

int Run(const BenchFlags& given) {
  BenchFlags flags = given;
  if (absl::Status status = MakeRoom(flags, &flags.model); !status.ok()) {
    return FailModel(flags.model.model, status);
  }
  int exit_code = kExitDone;
  const bool only_encode =
      std::none_of(flags.modes.begin(), flags.modes.end(),
                   [](const std::string& mode) { return mode == "generate" || mode == "score"; });
  const SessionNeeds needs = {
      .kind = only_encode ? RequestKind::kEncode : RequestKind::kGenerate,
      .tokenizer = TokenizerNeed::kNone,
      .queue = *std::max_element(flags.batches.begin(), flags.batches.end()),
      .warm_up = WarmUpShapes::kAll,
      .decodes = std::count(flags.modes.begin(), flags.modes.end(), "generate") > 0};
  std::unique_ptr<Session> session = OpenSession(flags.model, needs, &exit_code);
  if (session == nullptr) return exit_code;
  if (absl::Status status = CheckShapes(*session, flags); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  absl::StatusOr<nlohmann::ordered_json> report = Measure(*session, flags);
  if (!report.ok()) return Fail(kExitFailed, report.status());
  return WriteReport(*report, flags.output, flags.json_file);
}

template <typename T>
CLI::Option* AddList(CLI::App* command, const char* name, std::vector<T>* values,
                     const char* description, const char* unit) {
  return command->add_option(name, *values, description)
      ->allow_extra_args(false)
      ->delimiter(',')
      ->type_name(unit)
      ->group("Shapes");
}

void AddShapeFlags(CLI::App* command, BenchFlags* flags) {
  const CLI::Validator positive = InRange(int64_t{1}, int64_t{1} << 24);
  AddList(command, "--mode", &flags->modes,
          "Modes to measure: encode, encode-first (returns only the first hidden state of each "
          "input), generate, score.",
          "MODE,...")
      ->check(CLI::IsMember({"encode", "encode-first", "generate", "score"}));
  AddList(command, "--batch", &flags->batches, "Inputs per batch.", "INPUTS,...")->check(positive);
  AddList(command, "--input-tokens", &flags->input_tokens, "Length of each input.", "TOKENS,...")
      ->check(positive);
  AddList(command, "--num-beams", &flags->beams,
          "Number of beams of mode generate; 1 = greedy search. Range [1, 32].", "BEAMS,...")
      ->check(InRange(1, 32));
  command
      ->add_option("--new-tokens", flags->new_tokens,
                   "Tokens generated per input. Range [1, 4096].")
      ->check(InRange(1, 4096))
      ->type_name("TOKENS")
      ->group("Shapes");
  command->add_option("--targets", flags->targets, "Targets scored per input. Range [1, 4096].")
      ->check(InRange(1, 4096))
      ->type_name("TARGETS")
      ->group("Shapes");
  command
      ->add_option("--target-tokens", flags->target_tokens,
                   "Length of each target. Range [1, 4096].")
      ->check(InRange(1, 4096))
      ->type_name("TOKENS")
      ->group("Shapes");
}

void AddMeasurementFlags(CLI::App* command, BenchFlags* flags) {
  command
      ->add_option("--repetitions", flags->repetitions, "Measured runs per shape. Range [1, 1000].")
      ->check(InRange(1, 1000))
      ->type_name("RUNS")
      ->group("Measurement");
  command
      ->add_option("--warmup", flags->warmup, "Unmeasured runs per shape before the measured ones.")
      ->check(InRange(0, 1000))
      ->type_name("RUNS")
      ->group("Measurement");
  command->add_option("--seed", flags->seed, "Random seed for token ids and sampling.")
      ->check(NumberOf<uint64_t>())
      ->type_name("INTEGER")
      ->group("Measurement");
  command->add_option("--output", flags->output, "Format of the report: text (a table) or json.")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT")
      ->group("Measurement");
  command->add_option("--json", flags->json_file, "Also write the report as JSON to this file.")
      ->type_name("FILE")
      ->group("Measurement");
}

}  // namespace

void AddBenchCommand(CommandLine& line) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = line.AddCommand(
      {"bench", "Measure the engine on random token ids.",
       "quintet bench --model DIR --threads 1 --batch 1,8 --num-beams 1,4 --json bench.json",
       "Times are medians over --repetitions runs. A run processes a whole batch: it encodes all "
       "inputs and\n"
       "generates exactly --new-tokens tokens for each, or scores --targets targets of "
       "--target-tokens tokens each."},
      [flags] { return Run(*flags); });
  AddModelFlags(line, command, &flags->model);
  AddIgnoreGenerationFieldsFlag(command, &flags->model.ignore_generation_fields);
  AddShapeFlags(command, flags.get());
  AddSamplingFlags(command, &flags->decoding);
  AddLogitsProcessorFlags(command, &flags->decoding);
  AddMeasurementFlags(command, flags.get());
}

}  // namespace quintet
