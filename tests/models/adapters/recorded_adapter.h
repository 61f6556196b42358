// The adapters of tests/data/adapters, and the outputs that PEFT computed with them
// (tools/adapter_oracle.py).
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/row_runner.h"

namespace quintet {

struct RecordedAdapter {
  explicit RecordedAdapter(const std::string& name);

  std::string name;
  std::string path;  // the directory of PEFT, or the file of kohya's format
  std::string base;  // directory of the base model
  TokenRows inputs, targets;
  std::vector<float> logits;  // packed
  std::vector<float> states;  // of the encoder, packed; empty for GPT-2 and classifiers
  nlohmann::json searches;
};

std::vector<std::string> RecordedAdapterNames();

// The largest difference, relative to the largest magnitude of `expected`.
double RelativeDifference(const std::vector<float>& actual, const std::vector<float>& expected);
// The mean difference, relative to the mean magnitude of `expected`.
double MeanDifference(const std::vector<float>& actual, const std::vector<float>& expected);

struct ForwardOutputs {
  std::vector<float> states, logits;  // as in RecordedAdapter
};
// Runs a model over the inputs and targets of `record`. `adapters`: the adapter of each input, an
// index in LoadOptions::adapters or -1 for none; if `adapters` is empty, no input has one.
ForwardOutputs RunRecorded(const RecordedAdapter& record, Model* model,
                           const std::vector<int32_t>& adapters = {});
// Like RunRecorded, but takes the adapters themselves; null: none.
ForwardOutputs RunRecordedWith(const RecordedAdapter& record, Model* model,
                               const std::vector<AdapterHandle>& adapters);

// Writes a copy of the PEFT adapter in `record` to `directory`, with all factors B multiplied by
// `factor`.
void WriteScaled(const RecordedAdapter& record, const std::string& directory, float factor);

// Limits that are large enough for every RecordedAdapter.
ModelLimits RecordedLimits();

}  // namespace quintet
