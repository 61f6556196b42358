#include "tests/models/adapters/recorded_adapter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "kernels/base/check.h"

namespace quintet {
namespace {

const std::string kTests = QUINTET_SOURCE_DIR "/tests/";

std::vector<float> TensorOf(const TestTensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? std::vector<float>() : found->second.values;
}

}  // namespace

RecordedAdapter::RecordedAdapter(const std::string& name)
    : name(name), path(kTests + "data/adapters/" + name) {
  const nlohmann::json record = nlohmann::json::parse(FileBytes(path + "/record.json"));
  base = kTests + record["base"].get<std::string>();
  inputs = record["inputs"].get<TokenRows>();
  targets = record.value("targets", TokenRows());
  searches = record.value("searches", nlohmann::json::array());
  const TestTensors tensors = ReadTensorFile(path + "/record.safetensors");
  logits = TensorOf(tensors, "logits");
  states = TensorOf(tensors, "states");
  if (std::filesystem::exists(path + "/adapter.safetensors")) path += "/adapter.safetensors";
}

std::vector<std::string> RecordedAdapterNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kTests + "data/adapters")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

double RelativeDifference(const std::vector<float>& actual, const std::vector<float>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0, largest = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return difference == 0.0 ? 0.0 : difference / largest;
}

double MeanDifference(const std::vector<float>& actual, const std::vector<float>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0, magnitude = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    difference += std::abs(static_cast<double>(actual[i]) - expected[i]);
    magnitude += std::abs(static_cast<double>(expected[i]));
  }
  return difference / magnitude;
}

ForwardOutputs RunRecorded(const RecordedAdapter& record, Model* model,
                           const std::vector<int32_t>& adapters) {
  std::vector<AdapterHandle> handles;
  for (const int32_t adapter : adapters) {
    handles.push_back(adapter < 0 ? nullptr : model->adapters()[static_cast<size_t>(adapter)]);
  }
  return RunRecordedWith(record, model, handles);
}

ForwardOutputs RunRecordedWith(const RecordedAdapter& record, Model* model,
                               const std::vector<AdapterHandle>& adapters) {
  const ModelConfig& config = model->config();
  RowRunner runner(model);
  runner.set_adapters(adapters);
  ForwardOutputs out;
  std::vector<float> states;
  if (config.has_encoder()) states = runner.Encode(record.inputs, 1 << 20);
  if (config.head == Head::kLanguageModel) {
    out.states = states;
    out.logits = runner.Logits(runner.Decode(record.targets, 1 << 20));
    return out;
  }
  if (config.classifies_input()) {
    out.logits = runner.Classify(states);
    return out;
  }
  // T5's sequence classifier gives the decoder the input shifted right, and reads the decoder's
  // hidden state of the last token, eos.
  TokenRows shifted = record.inputs;
  for (auto& row : shifted) {
    row.pop_back();
    row.insert(row.begin(), config.decoder_start_id);
  }
  const std::vector<float> all = runner.Decode(shifted, 1 << 20);
  std::vector<float> last;
  int64_t end = 0;
  for (const auto& row : shifted) {
    end += static_cast<int64_t>(row.size());
    last.insert(last.end(), all.begin() + (end - 1) * config.d_model,
                all.begin() + end * config.d_model);
  }
  out.logits = runner.Classify(last);
  return out;
}

void WriteScaled(const RecordedAdapter& record, const std::string& directory, float factor) {
  TestTensors tensors = ReadTensorFile(record.path + "/adapter_model.safetensors");
  for (auto& [name, tensor] : tensors) {
    if (name.find("lora_B") == std::string::npos) continue;
    for (float& value : tensor.values) value *= factor;
  }
  std::filesystem::create_directory(directory);
  WriteTensors(directory, tensors, "adapter_model.safetensors");
  WriteBytes(directory + "/adapter_config.json", FileBytes(record.path + "/adapter_config.json"));
}

ModelLimits RecordedLimits() {
  ModelLimits limits;
  limits.max_encode_tokens = 1024;
  limits.max_step_tokens = 512;
  limits.max_step_sequences = 64;
  limits.cache_pages = 256;
  return limits;
}

}  // namespace quintet
