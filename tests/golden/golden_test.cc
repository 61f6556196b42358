// golden_test [folder]: runs every case in a folder of cases and prints one line per case. The
// folder is the argument, else QUINTET_GOLDEN_DIR, else tests/golden/cases. Exits with 1 if a case
// fails, if a folder cannot be read or if there is no case.
//
// QUINTET_DEVICE=cuda selects the first GPU (exit code 77 if there is none). QUINTET_DTYPE=bf16 or
// f16 selects the dtype of weights and activations on the GPU. QUINTET_CACHE_DTYPE=fp8, with one of
// these, selects a KV cache of fp8.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/model.h"
#include "tests/golden/decodes.h"
#include "tests/golden/forward.h"
#include "tests/golden/golden_case.h"
#include "tests/golden/served.h"

namespace quintet {
namespace {

constexpr int kSkipped = 77;

// The device and dtype of the run.
struct Setting {
  std::unique_ptr<Device> device;  // null: the CPU
  WeightType type = WeightType::kF32;
  bool fp8_cache = false;

  bool exact() const { return type == WeightType::kF32; }
  // Returns the recorded errors of torch in bf16 for this tensor; null if there are none or if the
  // run is not in bf16.
  const Bf16Errors* Rounding(const GoldenCase& c, const std::string& name) const {
    if (type != WeightType::kBF16) return nullptr;
    const auto found = c.bf16.find(
        absl::StrContains(name, "hidden_state") ? "encoder_last_hidden_state" : "decoder_logits");
    return found == c.bf16.end() ? nullptr : &found->second;
  }
  // Returns the tolerance for the error of a tensor, relative to its maximum golden magnitude. In
  // bf16 it is at least 1.5 times the error of torch in the mode f32_residual (fat5_bf16.py), which
  // rounds the same values as Quintet. The factor is needed because the error depends on the order
  // of summation. With a cache of fp8, whose values have relative errors of up to 1/16, outputs of
  // the decoder have a larger tolerance.
  double Tolerance(const ModelConfig& config, const GoldenCase& c, const std::string& name) const {
    if (exact()) return config.family == Family::kFat5 || device != nullptr ? 5e-5 : 1e-5;
    const Bf16Errors* rounding = Rounding(c, name);
    const bool hidden = absl::StrContains(name, "hidden_state");
    const double tolerance =
        std::max(hidden ? 3e-2 : 6e-2, rounding == nullptr ? 0.0 : 1.5 * rounding->f32_residual);
    return fp8_cache && !hidden ? std::max(0.45, 2 * tolerance) : tolerance;
  }
};

// Appends "name error (tolerance t)" for each tensor to *line. Returns false if an error exceeds
// its tolerance.
bool DescribeTensors(const std::vector<TensorResult>& results, const ModelConfig& config,
                     const GoldenCase& c, const Setting& setting, std::string* line) {
  bool ok = true;
  std::vector<std::string> parts;
  for (const TensorResult& r : results) {
    const double tolerance = setting.Tolerance(config, c, r.name);
    const Bf16Errors* rounding = setting.Rounding(c, r.name);
    const std::string torch =
        rounding == nullptr
            ? ""
            : absl::StrCat("; torch in bf16 ", rounding->reference,
                           ", with an f32 residual stream ", rounding->f32_residual);
    const bool good = r.error <= tolerance;
    ok &= good;
    parts.push_back(absl::StrCat(r.name, " ", r.error, good ? "" : " TOO LARGE", " (tolerance ",
                                 tolerance, torch, ")"));
  }
  absl::StrAppend(line, absl::StrJoin(parts, ", "));
  return ok;
}

bool DescribeDecodes(const DecodeResult& result, std::string* line) {
  if (result.equal > 0) absl::StrAppend(line, "; ", result.equal, " decoded rows equal");
  if (result.score_error > 0) absl::StrAppend(line, ", scores within ", result.score_error);
  if (!result.near_ties.empty()) {
    absl::StrAppend(line,
                    "; WARNING: near-ties that differ: ", absl::StrJoin(result.near_ties, " "));
  }
  if (result.failures.empty()) return true;
  absl::StrAppend(line, "; ", result.failures.size(), " DECODED ROWS DIFFER, first ",
                  result.failures[0]);
  return false;
}

// With rounded weights some decoded rows differ from fp32. Their number is printed, not checked.
void DescribeRounded(const DecodeResult& result, std::string* line) {
  const size_t different = result.near_ties.size() + result.failures.size();
  absl::StrAppend(line, "; ", result.equal, " decoded rows of ",
                  static_cast<size_t>(result.equal) + different, " are those of fp32");
}

// Runs a golden case. *line gets the text to print after the name of the case.
bool RunCase(const std::string& directory, const Setting& setting, ThreadPool* pool,
             std::string* line) {
  const auto failed = [line](const absl::Status& status) {
    absl::StrAppend(line, line->empty() ? "" : "; ", status.ToString());
    return false;
  };
  absl::StatusOr<GoldenCase> c = ReadGoldenCase(directory);
  if (!c.ok()) return failed(c.status());
  LoadOptions options;
  options.limits = LimitsFor(*c);
  options.weights = setting.type;
  options.fp8_cache = setting.fp8_cache;
  options.device = setting.device.get();
  absl::StatusOr<std::unique_ptr<Model>> model = Model::Load(directory, options, pool);
  if (!model.ok()) return failed(model.status());

  absl::StatusOr<std::vector<TensorResult>> tensors =
      CheckForward(*c, setting.exact(), model->get());
  if (!tensors.ok()) return failed(tensors.status());
  absl::StatusOr<std::vector<TensorResult>> served = CheckServed(*c, model->get());
  if (!served.ok()) return failed(served.status());
  tensors->insert(tensors->end(), served->begin(), served->end());
  bool ok = DescribeTensors(*tensors, (*model)->config(), *c, setting, line);
  for (const char* name : {"encoder_last_hidden_state", "decoder_logits"}) {
    if (c->kind == "seq2seq" && c->expected.count(name) == 0) {
      absl::StrAppend(line, ", no ", name, " to compare");
    }
  }
  if (c->decodes.empty() && c->greedy.empty()) return ok;
  absl::StatusOr<DecodeResult> decodes = CheckDecodes(*c, model->get());
  if (!decodes.ok()) return failed(decodes.status());
  if (!setting.exact()) {
    DescribeRounded(*decodes, line);
    return ok;
  }
  return DescribeDecodes(*decodes, line) && ok;
}

int RunAll(const std::string& root, const Setting& setting) {
  std::vector<std::string> directories;
  std::error_code error;
  for (std::filesystem::directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_directory()) directories.push_back(it->path().string());
  }
  if (error) {
    std::printf("FAIL: cannot read the folder '%s': %s\n", root.c_str(), error.message().c_str());
    return 1;
  }
  if (directories.empty()) {
    std::printf("FAIL: no case folders in '%s'\n", root.c_str());
    return 1;
  }
  std::sort(directories.begin(), directories.end());
  ThreadPool pool(2);
  int failures = 0;
  for (const std::string& directory : directories) {
    std::string line;
    const bool ok = RunCase(directory, setting, &pool, &line);
    if (!ok) ++failures;
    std::printf("%s %s: %s\n", ok ? "PASS" : "FAIL",
                std::filesystem::path(directory).filename().c_str(), line.c_str());
    std::fflush(stdout);
  }
  std::printf("%zu cases, %d failed\n", directories.size(), failures);
  return failures == 0 ? 0 : 1;
}

// Sets *setting from QUINTET_DEVICE, QUINTET_DTYPE and QUINTET_CACHE_DTYPE. Returns a nonzero exit
// code if one of these variables is invalid, or if it selects a GPU and there is none.
int Read(Setting* setting) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string device = variable("QUINTET_DEVICE"), dtype = variable("QUINTET_DTYPE");
  const std::string cache = variable("QUINTET_CACHE_DTYPE");
  setting->fp8_cache = cache == "fp8";
  if (dtype == "bf16") setting->type = WeightType::kBF16;
  if (dtype == "f16") setting->type = WeightType::kF16;
  if ((device != "" && device != "cpu" && device != "cuda") ||
      (dtype != "" && dtype != "f32" && setting->exact())) {
    std::printf("FAIL: QUINTET_DEVICE=%s QUINTET_DTYPE=%s: expected cpu|cuda and f32|bf16|f16\n",
                device.c_str(), dtype.c_str());
    return 1;
  }
  if ((cache != "" && cache != "auto" && !setting->fp8_cache) ||
      (setting->fp8_cache && (device != "cuda" || setting->exact()))) {
    std::printf("FAIL: QUINTET_CACHE_DTYPE=%s: expected auto, or fp8 with cuda and bf16|f16\n",
                cache.c_str());
    return 1;
  }
  if (device != "cuda") return 0;
  absl::StatusOr<std::unique_ptr<Device>> opened = Device::Open(0);
  if (!opened.ok()) {
    std::printf("skipped: %s\n", std::string(opened.status().message()).c_str());
    return kSkipped;
  }
  setting->device = *std::move(opened);
  return 0;
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) {
  const char* environment = std::getenv("QUINTET_GOLDEN_DIR");
  std::string root = QUINTET_SOURCE_DIR "/tests/golden/cases";
  if (environment != nullptr && *environment != '\0') root = environment;
  if (argc > 1) root = argv[1];
  quintet::Setting setting;
  if (const int exit_code = quintet::Read(&setting); exit_code != 0) return exit_code;
  return quintet::RunAll(root, setting);
}
