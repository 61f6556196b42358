#include "server/kserve/results.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "engine/answer_spans.h"
#include "kernels/base/check.h"
#include "server/proto_conversion.h"

namespace quintet {
namespace {

using Shape = OutputTensors::Shape;

// A row-major matrix in which rows shorter than the longest one are padded.
template <typename T>
struct Padded {
  int64_t columns = 0;
  std::vector<T> values;

  // `at(row)` returns a container with the values of that row.
  template <typename At>
  Padded(size_t rows, At at, const T& padding) {
    for (size_t row = 0; row < rows; ++row) {
      columns = std::max(columns, static_cast<int64_t>(at(row).size()));
    }
    values.resize(rows * static_cast<size_t>(columns), padding);
    for (size_t row = 0; row < rows; ++row) {
      const auto& from = at(row);
      std::copy(from.begin(), from.end(), values.begin() + static_cast<int64_t>(row) * columns);
    }
  }
};

// Writes the outputs `names`. `writers` maps the name of an output to the function that writes it.
using Writer = std::function<void(const char* name)>;
void WriteAll(const std::vector<std::string>& names, const std::map<std::string, Writer>& writers) {
  for (const std::string& name : names) {
    const auto found = writers.find(name);
    QT_CHECK(found != writers.end());
    found->second(found->first.c_str());
  }
}

Writer InputTokens(const std::vector<Result>& results, bool flat, OutputTensors* to) {
  return [&results, flat, to](const char* name) {
    std::vector<int32_t> tokens;
    for (const Result& result : results) {
      tokens.push_back(static_cast<int32_t>(result.input_tokens));
    }
    const int64_t batch = static_cast<int64_t>(results.size());
    to->Int32(name, flat ? Shape{batch} : Shape{batch, 1}, tokens);
  };
}

// "stop" and "length" as in vLLM.
const char* ReasonName(const v1::Sequence& sequence) {
  return sequence.finish_reason() == v1::FINISH_REASON_LENGTH ? "length" : "stop";
}

std::vector<float> LogProbs(const google::protobuf::RepeatedPtrField<v1::TokenLogProb>& tokens) {
  std::vector<float> values;
  for (const v1::TokenLogProb& token : tokens) values.push_back(token.log_prob());
  return values;
}

// The sequences of all inputs of a generation: [batch, maximum number of sequences per input].
class Sequences {
 public:
  explicit Sequences(const std::vector<v1::GenerateResponse>& responses)
      : batch_(responses.size()) {
    for (const auto& response : responses) {
      each_ = std::max(each_, static_cast<size_t>(response.sequences_size()));
    }
    for (const auto& response : responses) {
      for (size_t i = 0; i < each_; ++i) {
        const bool has = i < static_cast<size_t>(response.sequences_size());
        all_.push_back(has ? &response.sequences(static_cast<int>(i)) : nullptr);
      }
    }
  }

  size_t size() const { return all_.size(); }
  // Returns the shape [batch, sequences, inner...]; if `flat`, [batch * sequences, inner...].
  Shape ShapeOf(bool flat, Shape inner = {}) const {
    Shape shape = flat ? Shape{static_cast<int64_t>(all_.size())}
                       : Shape{static_cast<int64_t>(batch_), static_cast<int64_t>(each_)};
    shape.insert(shape.end(), inner.begin(), inner.end());
    return shape;
  }
  // Returns `each_` values per input: get(sequence), or `missing` if the input has fewer sequences.
  template <typename T, typename Get>
  std::vector<T> Values(Get get, const T& missing) const {
    std::vector<T> values;
    for (const v1::Sequence* sequence : all_) {
      values.push_back(sequence == nullptr ? missing : T(get(*sequence)));
    }
    return values;
  }

 private:
  size_t batch_, each_ = 0;
  std::vector<const v1::Sequence*> all_;
};

std::string UnsentText(const v1::Sequence& sequence, const OutputOptions& options) {
  const auto sent = options.sent.find(sequence.index());
  if (sent == options.sent.end()) return sequence.text();
  return sequence.text().substr(std::min(sent->second.text_bytes, sequence.text().size()));
}

std::vector<int32_t> UnsentIds(const v1::Sequence& sequence, const OutputOptions& options) {
  const auto sent = options.sent.find(sequence.index());
  const int skipped = sent == options.sent.end()
                          ? 0
                          : std::min(static_cast<int>(sent->second.ids), sequence.token_ids_size());
  return {sequence.token_ids().begin() + skipped, sequence.token_ids().end()};
}

std::map<std::string, Writer> SequenceWriters(const Sequences& sequences,
                                              const OutputOptions& options, int32_t pad_id,
                                              OutputTensors* to) {
  const bool flat = options.flat;
  const auto ids = [&sequences, &options] {
    return sequences.Values<std::vector<int32_t>>(
        [&options](const v1::Sequence& s) { return UnsentIds(s, options); }, {});
  };
  const auto log_probs = [&sequences] {
    return sequences.Values<std::vector<float>>(
        [](const v1::Sequence& s) { return LogProbs(s.logprobs()); }, {});
  };
  const auto strings = [&sequences, flat, to](auto get) {
    return [&sequences, flat, to, get](const char* name) {
      to->Strings(name, sequences.ShapeOf(flat), sequences.Values<std::string>(get, ""));
    };
  };
  return {
      {"text_output", strings([&options](const auto& s) { return UnsentText(s, options); })},
      {"finish_reason", strings(ReasonName)},
      {"matched_stop", strings([](const v1::Sequence& s) { return s.matched_stop(); })},
      {"output_ids",
       [=, &sequences](const char* name) {
         const auto rows = ids();
         const Padded<int32_t> padded(
             rows.size(), [&](size_t i) -> const auto& { return rows[i]; }, pad_id);
         to->Int32(name, sequences.ShapeOf(flat, {padded.columns}), padded.values);
       }},
      {"sequence_length",
       [=, &sequences](const char* name) {
         to->Int32(name, sequences.ShapeOf(flat),
                   sequences.Values<int32_t>(
                       [](const v1::Sequence& s) { return s.token_ids_size(); }, 0));
       }},
      {"sequence_scores",
       [=, &sequences](const char* name) {
         to->Fp32(name, sequences.ShapeOf(flat),
                  sequences.Values<float>([](const v1::Sequence& s) { return s.score(); }, 0.0f));
       }},
      {"output_log_probs",
       [=, &sequences](const char* name) {
         const auto rows = log_probs();
         const Padded<float> padded(
             rows.size(), [&](size_t i) -> const auto& { return rows[i]; }, 0.0f);
         to->Fp32(name, sequences.ShapeOf(flat, {padded.columns}), padded.values);
       }},
      {"cumulative_logprob",
       [=, &sequences](const char* name) {
         std::vector<float> sums;
         for (const std::vector<float>& row : log_probs()) {
           double sum = 0;
           for (const float value : row) sum += value;
           sums.push_back(static_cast<float>(sum));
         }
         to->Fp32(name, sequences.ShapeOf(flat), sums);
       }},
  };
}

// Appends the rows of one encoded input, padded with zeros to `rows` rows.
void AppendRows(const Result& result, v1::VectorType type, int64_t rows, std::string* to) {
  AppendEmbedding(result, type, to);
  const size_t row_bytes = static_cast<size_t>(result.columns * VectorBytes(type));
  to->append(static_cast<size_t>(rows - result.rows) * row_bytes, '\0');
}

kserve::DataType TypeOf(v1::VectorType type) {
  if (type == v1::VECTOR_TYPE_FP16) return kserve::TYPE_FP16;
  return type == v1::VECTOR_TYPE_BF16 ? kserve::TYPE_BF16 : kserve::TYPE_FP32;
}

// The name of the most likely label of a row of logits.
std::string BestLabel(std::span<const float> logits, const ModelConfig& config) {
  if (logits.empty()) return "";
  const auto best = std::max_element(logits.begin(), logits.end());
  return config.label_names[static_cast<size_t>(best - logits.begin())];
}

std::span<const float> RowOf(const Result& result, int64_t row) {
  return std::span(result.values)
      .subspan(static_cast<size_t>(row * result.columns), static_cast<size_t>(result.columns));
}

std::vector<float> Probabilities(const Result& result, const ModelConfig& config) {
  std::vector<float> values;
  for (int64_t row = 0; row < result.rows; ++row) {
    const std::vector<double> of_row =
        config.head == Head::kTokenClassification
            ? Softmax(RowOf(result, row))
            : LabelProbabilities(RowOf(result, row), config.label_kind);
    values.insert(values.end(), of_row.begin(), of_row.end());
  }
  return values;
}

// Writes labels of texts, with the shape [batch, labels], or of tokens, with the shape [batch,
// tokens, labels].
class LabelWriter {
 public:
  LabelWriter(const v1::ClassifyResponse& classified, const std::vector<Result>& results,
              const ModelConfig& config, OutputTensors* to)
      : classified_(classified), results_(results), config_(config), to_(to) {
    for (const Result& result : results) tokens_ = std::max(tokens_, result.rows);
  }

  void Labels(const char* name) const {
    const Padded<std::string> padded(
        results_.size(),
        [this](size_t i) {
          std::vector<std::string> labels;
          for (int64_t row = 0; row < results_[i].rows; ++row) {
            labels.push_back(BestLabel(RowOf(results_[i], row), config_));
          }
          return labels;
        },
        "");
    to_->Strings(name, {batch(), padded.columns}, padded.values);
  }
  void Logits(const char* name) const {
    Values(name, [this](size_t i) { return results_[i].values; });
  }
  void Probs(const char* name) const {
    Values(name, [this](size_t i) { return Probabilities(results_[i], config_); });
  }
  void Offsets(const char* name) const {
    const Padded<int32_t> padded(
        results_.size(),
        [this](size_t i) {
          std::vector<int32_t> offsets;
          for (const v1::TokenLabel& token : classified_.results(static_cast<int>(i)).tokens()) {
            offsets.push_back(static_cast<int32_t>(token.begin_byte()));
            offsets.push_back(static_cast<int32_t>(token.end_byte()));
          }
          return offsets;
        },
        0);
    to_->Int32(name, {batch(), padded.columns / 2, 2}, padded.values);
  }

 private:
  int64_t batch() const { return static_cast<int64_t>(results_.size()); }
  template <typename At>
  void Values(const char* name, At at) const {
    const Padded<float> padded(results_.size(), at, 0.0f);
    const int64_t labels = static_cast<int64_t>(config_.label_names.size());
    to_->Fp32(name,
              config_.head == Head::kTokenClassification ? Shape{batch(), tokens_, labels}
                                                         : Shape{batch(), labels},
              padded.values);
  }

  const v1::ClassifyResponse& classified_;
  const std::vector<Result>& results_;
  const ModelConfig& config_;
  OutputTensors* const to_;
  int64_t tokens_ = 0;
};

std::map<std::string, Writer> AnswerWriters(const v1::ClassifyResponse& classified,
                                            OutputTensors* to) {
  const int64_t batch = classified.results_size();
  // Makes a matrix [batch, values]: `get` appends the values of one answer to a row.
  const auto padded = [&classified](auto padding, auto get) {
    using T = decltype(padding);
    return Padded<T>(
        static_cast<size_t>(classified.results_size()),
        [&classified, get](size_t i) {
          std::vector<T> values;
          for (const auto& answer : classified.results(static_cast<int>(i)).answers()) {
            get(answer, &values);
          }
          return values;
        },
        padding);
  };
  return {
      {"answer",
       [=](const char* name) {
         const auto texts = padded(std::string(), [](const v1::AnswerSpan& span, auto* values) {
           values->push_back(span.text());
         });
         to->Strings(name, {batch, texts.columns}, texts.values);
       }},
      {"answer_score",
       [=](const char* name) {
         const auto scores = padded(0.0f, [](const v1::AnswerSpan& span, auto* values) {
           values->push_back(span.score());
         });
         to->Fp32(name, {batch, scores.columns}, scores.values);
       }},
      {"answer_offsets",
       [=](const char* name) {
         const auto offsets = padded(int32_t{0}, [](const v1::AnswerSpan& span, auto* values) {
           values->push_back(static_cast<int32_t>(span.begin_byte()));
           values->push_back(static_cast<int32_t>(span.end_byte()));
         });
         to->Int32(name, {batch, offsets.columns / 2, 2}, offsets.values);
       }},
  };
}

}  // namespace

void WriteGenerated(const std::vector<v1::GenerateResponse>& responses,
                    const std::vector<Result>& results, int32_t pad_id,
                    const OutputOptions& options, kserve::ModelInferResponse* response) {
  OutputTensors to(options.typed, response);
  const Sequences sequences(responses);
  std::map<std::string, Writer> writers = SequenceWriters(sequences, options, pad_id, &to);
  writers["seed"] = [&](const char* name) {
    std::vector<uint64_t> seeds;
    for (const v1::GenerateResponse& one : responses) seeds.push_back(one.seed());
    const int64_t batch = static_cast<int64_t>(seeds.size());
    to.Uint64(name, options.flat ? Shape{batch} : Shape{batch, 1}, seeds);
  };
  writers["num_input_tokens"] = InputTokens(results, options.flat, &to);
  WriteAll(options.names, writers);
}

void WriteGeneratedChunk(const v1::GenerateChunk& chunk, const OutputOptions& options,
                         kserve::ModelInferResponse* response) {
  OutputTensors to(options.typed, response);
  const Shape shape = options.flat ? Shape{1} : Shape{1, 1};
  for (const std::string& name : options.names) {
    if (name == "text_output") {
      to.Strings("text_output", shape, std::span(&chunk.text(), 1));
    } else if (name == "output_ids") {
      Shape with_ids = shape;
      with_ids.push_back(chunk.token_ids_size());
      to.Int32("output_ids", with_ids,
               std::vector<int32_t>(chunk.token_ids().begin(), chunk.token_ids().end()));
    }
  }
}

void WriteEncoded(const std::vector<Result>& results, v1::VectorType type,
                  const OutputOptions& options, kserve::ModelInferResponse* response) {
  // FP16 and BF16 exist only as raw contents, and a response must not mix typed and raw contents.
  // If the embedding is FP16 or BF16, all outputs are therefore raw.
  OutputTensors to(options.typed && TypeOf(type) == kserve::TYPE_FP32, response);
  const int64_t batch = static_cast<int64_t>(results.size());
  int64_t rows = 0;
  for (const Result& result : results) rows = std::max(rows, result.rows);
  const auto values = [&] {
    std::string all;
    all.reserve(static_cast<size_t>(batch * rows * results[0].columns * VectorBytes(type)));
    for (const Result& result : results) AppendRows(result, type, rows, &all);
    return all;
  };
  WriteAll(options.names,
           {{"embedding",
             [&](const char* name) {
               to.Raw(name, TypeOf(type), {batch, results[0].columns}, values());
             }},
            {"last_hidden_state",
             [&](const char* name) {
               to.Raw(name, TypeOf(type), {batch, rows, results[0].columns}, values());
             }},
            {"num_input_tokens", InputTokens(results, /*flat=*/false, &to)}});
}

void WriteScored(const std::vector<v1::ScoreResponse>& responses,
                 const std::vector<Result>& results, const OutputOptions& options,
                 kserve::ModelInferResponse* response) {
  OutputTensors to(options.typed, response);
  std::vector<const v1::TargetScore*> scores;
  for (const v1::ScoreResponse& one : responses) {
    for (const v1::TargetScore& score : one.scores()) scores.push_back(&score);
  }
  const int64_t batch = static_cast<int64_t>(responses.size());
  const int64_t targets = responses[0].scores_size();
  WriteAll(options.names, {{"log_prob",
                            [&](const char* name) {
                              std::vector<double> sums;
                              for (const auto* score : scores) sums.push_back(score->log_prob());
                              to.Fp64(name, {batch, targets}, sums);
                            }},
                           {"target_length",
                            [&](const char* name) {
                              std::vector<int32_t> lengths;
                              for (const auto* score : scores) {
                                lengths.push_back(static_cast<int32_t>(score->tokens()));
                              }
                              to.Int32(name, {batch, targets}, lengths);
                            }},
                           {"token_log_probs",
                            [&](const char* name) {
                              const Padded<float> padded(
                                  scores.size(),
                                  [&](size_t i) { return LogProbs(scores[i]->logprobs()); }, 0.0f);
                              to.Fp32(name, {batch, targets, padded.columns}, padded.values);
                            }},
                           {"num_input_tokens", InputTokens(results, /*flat=*/false, &to)}});
}

void WriteClassified(const v1::ClassifyResponse& classified, const std::vector<Result>& results,
                     const ModelConfig& config, const OutputOptions& options,
                     kserve::ModelInferResponse* response) {
  OutputTensors to(options.typed, response);
  const LabelWriter labels(classified, results, config, &to);
  std::map<std::string, Writer> writers = {
      {"label", [&](const char* name) { labels.Labels(name); }},
      {"probabilities", [&](const char* name) { labels.Probs(name); }},
      {"logits", [&](const char* name) { labels.Logits(name); }},
      {"offsets", [&](const char* name) { labels.Offsets(name); }},
      {"num_input_tokens", InputTokens(results, /*flat=*/false, &to)}};
  writers.merge(AnswerWriters(classified, &to));
  WriteAll(options.names, writers);
}

void WriteInfoParameters(const v1::CallInfo& info, kserve::ModelInferResponse* response) {
  AddParameter("request_id", response)->set_string_param(info.request_id());
  const std::pair<const char*, uint64_t> numbers[] = {
      {"input_tokens", info.usage().input_tokens()},
      {"output_tokens", info.usage().output_tokens()},
      {"cached_tokens", info.usage().cached_tokens()},
      {"queue_us", info.timing().queue_us()},
      {"first_token_us", info.timing().first_token_us()},
      {"total_us", info.timing().total_us()}};
  for (const auto& [name, value] : numbers) {
    AddParameter(name, response)->set_int64_param(static_cast<int64_t>(value));
  }
}

}  // namespace quintet
