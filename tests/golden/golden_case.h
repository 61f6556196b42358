// One folder of recorded numbers: a small checkpoint (config.json, model.safetensors), inputs and
// the outputs that Hugging Face's or FAT5's own code computed from it in fp32 (golden.safetensors),
// and decoded sequences (golden.json). README.md says more.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/options.h"
#include "tests/models/row_runner.h"

namespace quintet {

struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

struct GoldenDecode {
  DecodingRequest options;
  struct Row {
    TokenRows sequences;         // best first, prompt or start token included
    std::vector<double> scores;  // empty for greedy
    double smallest_gap = 0;     // below kNearTie the row may differ
  };
  std::vector<Row> rows;  // one per input row
};

// How far plain torch in bf16 is from fp32 (fat5_bf16.py), measured as in TensorResult.
struct Bf16Errors {
  double reference = 0;     // everything in bf16, as the reference model runs
  double f32_residual = 0;  // what Quintet rounds on a GPU
};

struct GoldenCase {
  std::string name, directory;
  std::string kind;  // seq2seq, causal, encoder, seqcls, tokcls, qa
  // Input rows without their padding, and the column that each token had with it.
  TokenRows inputs;
  std::vector<std::vector<int64_t>> columns;
  TokenRows decoder_inputs;                      // seq2seq
  std::map<std::string, GoldenTensor> expected;  // whatever float tensors the file holds
  std::vector<GoldenDecode> decodes;
  TokenRows greedy;  // FAT5: per row, start token included
  int64_t greedy_max_new = 0;
  std::map<std::string, Bf16Errors> bf16;  // by tensor; empty without bf16.json
};

// NOT_FOUND or INVALID_ARGUMENT saying which file and what in it.
absl::StatusOr<GoldenCase> ReadGoldenCase(const std::string& directory);

}  // namespace quintet
