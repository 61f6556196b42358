#include "tests/golden/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace quintet {
namespace {

// Meaning of an index in the second dimension of a golden tensor: a column of the padded input row,
// a decoder position, or nothing (kRow: the tensor has one vector per row).
enum class Axis : uint8_t { kInput, kDecoder, kRow };

struct OutputKind {
  const char* name;
  Axis axis;
};

std::vector<OutputKind> OutputsOf(const std::string& kind) {
  if (kind == "seq2seq") {
    return {{"encoder_last_hidden_state", Axis::kInput}, {"decoder_logits", Axis::kDecoder}};
  }
  if (kind == "encoder") return {{"encoder_last_hidden_state", Axis::kInput}};
  if (kind == "causal" || kind == "tokcls") return {{"logits", Axis::kInput}};
  if (kind == "seqcls") return {{"logits", Axis::kRow}};
  if (kind == "qa") return {{"start_logits", Axis::kInput}, {"end_logits", Axis::kInput}};
  return {};
}

// Returns one hidden state of each row: for row r the state at positions[r]. `states` is packed:
// the rows follow each other without padding.
std::vector<float> Pick(const std::vector<float>& states, const TokenRows& rows,
                        const std::vector<size_t>& positions, int64_t width) {
  std::vector<float> picked;
  int64_t begin = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto row = states.begin() + (begin + static_cast<int64_t>(positions[r])) * width;
    picked.insert(picked.end(), row, row + width);
    begin += static_cast<int64_t>(rows[r].size());
  }
  return picked;
}

std::vector<float> Column(const std::vector<float>& values, int64_t width, int64_t column) {
  std::vector<float> out;
  for (size_t i = static_cast<size_t>(column); i < values.size(); i += static_cast<size_t>(width)) {
    out.push_back(values[i]);
  }
  return out;
}

class CaseRunner {
 public:
  CaseRunner(const GoldenCase& c, Model* model) : case_(c), model_(*model), runner_(model) {}

  // Computes the outputs of the golden case for its input rows [begin, end). Each call of the model
  // encodes at most about `work` units (a unit is one token in one layer) and decodes at most
  // `piece` tokens of a row, so small values split the computation into slices.
  absl::StatusOr<Outputs> Run(size_t begin, size_t end, int64_t work, int64_t piece) {
    const TokenRows inputs(case_.inputs.begin() + begin, case_.inputs.begin() + end);
    const ModelConfig& config = model_.config();
    if (case_.kind == "seq2seq") {
      const TokenRows decoder(case_.decoder_inputs.begin() + begin,
                              case_.decoder_inputs.begin() + end);
      Outputs out{{"encoder_last_hidden_state", runner_.Encode(inputs, work)}};
      out["decoder_logits"] = runner_.Logits(runner_.Decode(decoder, piece));
      return out;
    }
    if (case_.kind == "encoder")
      return Outputs{{"encoder_last_hidden_state", runner_.Encode(inputs, work)}};
    if (case_.kind == "causal")
      return Outputs{{"logits", runner_.Logits(runner_.Decode(inputs, piece))}};

    std::vector<float> states;
    if (config.has_encoder()) states = runner_.Encode(inputs, work);
    if (config.has_decoder()) {
      states = runner_.Decode(config.has_encoder() ? ShiftRight(inputs) : inputs, piece);
    }
    if (case_.kind == "seqcls") {
      absl::StatusOr<std::vector<size_t>> positions = PooledPositions(inputs);
      if (!positions.ok()) return positions.status();
      states = Pick(states, inputs, *positions, config.d_model);
    }
    const std::vector<float> logits = runner_.Classify(states);
    if (case_.kind != "qa") return Outputs{{"logits", logits}};
    return Outputs{{"start_logits", Column(logits, config.labels, 0)},
                   {"end_logits", Column(logits, config.labels, 1)}};
  }

 private:
  TokenRows ShiftRight(TokenRows rows) const {
    for (auto& row : rows) {
      std::copy_backward(row.begin(), row.end() - 1, row.end());
      row[0] = model_.config().decoder_start_id;
    }
    return rows;
  }

  // Returns, for each input row, the position whose hidden state the classifier reads: the last EOS
  // in T5 and FAT5, the last token in GPT-2.
  absl::StatusOr<std::vector<size_t>> PooledPositions(const TokenRows& rows) const {
    std::vector<size_t> positions;
    const auto& eos = model_.config().eos_ids;
    for (const auto& row : rows) {
      size_t position = row.size() - 1;
      while (model_.config().has_encoder() &&
             std::find(eos.begin(), eos.end(), row[position]) == eos.end()) {
        if (position-- == 0)
          return absl::InvalidArgumentError(
              "input_ids: a row without an EOS token cannot be pooled");
      }
      positions.push_back(position);
    }
    return positions;
  }

  const GoldenCase& case_;
  Model& model_;
  RowRunner runner_;
};

// Whether a model with `config` can compute the outputs of a golden case of `kind` ("qa", ...).
bool KindFits(const std::string& kind, const ModelConfig& config) {
  if (kind == "encoder") return config.has_encoder();
  if (kind == "seqcls") return config.head == Head::kSequenceClassification;
  if (kind == "tokcls") return config.head == Head::kTokenClassification;
  if (kind == "qa") return config.head == Head::kQuestionAnswering;
  return config.head == Head::kLanguageModel && config.has_encoder() == (kind == "seq2seq");
}

absl::Status CheckInputs(const GoldenCase& c, const ModelConfig& config) {
  if (OutputsOf(c.kind).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("golden.json: kind '", c.kind, "' is not supported"));
  }
  if (!KindFits(c.kind, config)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind '", c.kind, "' does not fit a ", FamilyName(config.family),
                     " checkpoint with head ", HeadName(config.head)));
  }
  for (const TokenRows* rows : {&c.inputs, &c.decoder_inputs}) {
    for (const auto& row : *rows) {
      for (const int32_t id : row) {
        if (id < 0 || id >= config.vocab) {
          return absl::InvalidArgumentError(
              absl::StrCat("token id ", id, " of vocabulary ", config.vocab));
        }
      }
      if (config.position == PositionEncoding::kLearned &&
          static_cast<int64_t>(row.size()) > config.max_positions) {
        return absl::InvalidArgumentError(absl::StrCat("a row of ", row.size(),
                                                       " tokens, the model has ",
                                                       config.max_positions, " positions"));
      }
    }
  }
  if (c.kind == "seq2seq" && c.decoder_inputs.size() != c.inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("decoder_input_ids: expected ", c.inputs.size(),
                                                   " rows, got ", c.decoder_inputs.size()));
  }
  return absl::OkStatus();
}

// Returns max |got - golden| / max |golden|, both over the positions that the computation covers:
// padding is left out.
absl::StatusOr<double> Compare(const GoldenCase& c, const OutputKind& output,
                               const GoldenTensor& golden, const std::vector<float>& got) {
  const int64_t rows = static_cast<int64_t>(c.inputs.size());
  int64_t positions = 0, stride = 1;
  std::vector<std::vector<int64_t>> columns(c.inputs.size(), std::vector<int64_t>{0});
  if (output.axis == Axis::kInput) columns = c.columns;
  if (output.axis == Axis::kDecoder) {
    for (size_t r = 0; r < columns.size(); ++r) {
      columns[r].resize(c.decoder_inputs[r].size());
      for (size_t t = 0; t < columns[r].size(); ++t) columns[r][t] = static_cast<int64_t>(t);
    }
  }
  for (const auto& row : columns) positions += static_cast<int64_t>(row.size());
  const int64_t width = static_cast<int64_t>(got.size()) / positions;
  if (output.axis != Axis::kRow) stride = golden.shape.size() < 2 ? 0 : golden.shape[1];
  if (golden.shape.empty() || golden.shape[0] != rows ||
      static_cast<int64_t>(golden.values.size()) != rows * stride * width) {
    return absl::InvalidArgumentError(absl::StrCat(output.name, ": ", golden.values.size(),
                                                   " values, expected ", rows, " rows x ", stride,
                                                   " positions x ", width));
  }
  double worst = 0, largest = 0;
  int64_t packed = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (const int64_t column : columns[static_cast<size_t>(r)]) {
      if (column >= stride)
        return absl::InvalidArgumentError(absl::StrCat(output.name, ": too short"));
      const float* want = golden.values.data() + (r * stride + column) * width;
      const float* x = got.data() + packed++ * width;
      for (int64_t i = 0; i < width; ++i) {
        const double error = std::abs(static_cast<double>(x[i]) - want[i]);
        if (!(error <= worst))
          worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
        largest = std::max(largest, std::abs(static_cast<double>(want[i])));
      }
    }
  }
  if (largest == 0)
    return absl::InvalidArgumentError(
        absl::StrCat(output.name, ": the golden tensor is all zeros"));
  return worst / largest;
}

}  // namespace

ModelLimits LimitsFor(const GoldenCase& c) {
  ModelLimits limits;
  int64_t longest = 0, beams = 1, new_tokens = c.greedy_max_new, prompt = 1;
  for (const auto& row : c.inputs) longest = std::max(longest, static_cast<int64_t>(row.size()));
  if (c.kind == "causal") prompt = longest;
  for (const GoldenDecode& decode : c.decodes) {
    beams = std::max<int64_t>(beams, decode.options.num_beams.value_or(1));
    new_tokens = std::max<int64_t>(new_tokens, decode.options.max_new_tokens.value_or(256));
  }
  const auto pages = [&](int64_t tokens) {
    return (tokens + limits.page_size - 1) / limits.page_size;
  };
  // If a task head uses the decoder, the decoder reads a shifted copy of the golden case's inputs.
  // The KV cache then needs decoder pages for the inputs, too.
  const int64_t tensors = PagesFor(c.inputs, c.inputs, limits.page_size) +
                          PagesFor(c.decoder_inputs, {}, limits.page_size);
  const int64_t request = pages(longest) + beams * (pages(prompt + new_tokens + 1) + 2);
  limits.cache_pages = std::max(tensors, 8 * request);
  limits.max_encode_tokens = TotalTokens(c.inputs);
  limits.max_step_tokens =
      std::max<int64_t>({TotalTokens(c.inputs), TotalTokens(c.decoder_inputs), 64});
  limits.max_step_sequences =
      std::max<int64_t>({static_cast<int64_t>(c.inputs.size()), 2 * beams, 64});
  return limits;
}

absl::StatusOr<std::vector<TensorResult>> CompareOutputs(const GoldenCase& c,
                                                         const Outputs& outputs) {
  std::vector<TensorResult> results;
  for (const OutputKind& output : OutputsOf(c.kind)) {
    const auto golden = c.expected.find(output.name);
    const auto got = outputs.find(output.name);
    if (golden == c.expected.end() || got == outputs.end()) continue;
    absl::StatusOr<double> error = Compare(c, output, golden->second, got->second);
    if (!error.ok()) return error.status();
    results.push_back({output.name, *error});
  }
  return results;
}

absl::StatusOr<std::vector<TensorResult>> CheckForward(const GoldenCase& c, bool same_bits,
                                                       Model* model) {
  absl::Status status = CheckInputs(c, model->config());
  if (!status.ok()) return status;
  constexpr int64_t kAll = int64_t{1} << 40;
  CaseRunner runner(c, model);
  absl::StatusOr<Outputs> packed = runner.Run(0, c.inputs.size(), kAll, kAll);
  if (!packed.ok()) return packed.status();

  Outputs alone;
  for (size_t r = 0; r < c.inputs.size(); ++r) {
    absl::StatusOr<Outputs> row = runner.Run(r, r + 1, 7, 5);
    if (!row.ok()) return row.status();
    for (const auto& [name, values] : *row) {
      alone[name].insert(alone[name].end(), values.begin(), values.end());
    }
  }
  for (const auto& [name, values] : *packed) {
    const std::vector<float>& other = alone[name];
    if (values.size() != other.size()) {
      return absl::InternalError(
          absl::StrCat(name, ": output size of a single row differs from the packed run"));
    }
    if (same_bits && std::memcmp(values.data(), other.data(), values.size() * sizeof(float)) != 0) {
      return absl::InternalError(
          absl::StrCat(name, ": bits of a single row differ from the packed run"));
    }
  }

  absl::StatusOr<std::vector<TensorResult>> results = CompareOutputs(c, *packed);
  if (results.ok() && results->empty()) {
    return absl::NotFoundError("golden.safetensors: no output to compare");
  }
  return results;
}

}  // namespace quintet
