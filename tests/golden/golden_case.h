// A golden case: a folder with a small checkpoint (config.json, model.safetensors), inputs and the
// outputs that Hugging Face or the FAT5 code computed from them in fp32 (golden.safetensors), and
// decoded sequences (golden.json). See README.md.
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
    double smallest_gap = 0;     // smallest decision margin; below kNearTie the row may differ
  };
  std::vector<Row> rows;  // one per input row
};

// Errors of one tensor computed by plain torch in bf16 (fat5_bf16.py): max |x - golden| / max
// |golden|, where `golden` is the tensor in fp32.
struct Bf16Errors {
  double reference = 0;     // everything in bf16, like the reference model
  double f32_residual = 0;  // f32 residual stream, like Quintet on a GPU
};

struct GoldenCase {
  std::string name, directory;
  std::string kind;  // seq2seq, causal, encoder, seqcls, tokcls, qa
  // Input rows without padding, and the column of each token in the padded row.
  TokenRows inputs;
  std::vector<std::vector<int64_t>> columns;
  TokenRows decoder_inputs;                      // seq2seq
  std::map<std::string, GoldenTensor> expected;  // all float tensors of the file
  std::vector<GoldenDecode> decodes;
  TokenRows greedy;  // FAT5: per row, start token included
  int64_t greedy_max_new = 0;
  std::map<std::string, Bf16Errors> bf16;  // by tensor; empty without bf16.json
};

// Returns NOT_FOUND or INVALID_ARGUMENT with a message that names the file and the field.
absl::StatusOr<GoldenCase> ReadGoldenCase(const std::string& directory);

}  // namespace quintet
