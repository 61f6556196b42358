// quintet classify: depending on the model's head, predicts one label for each line or one label
// for each token, or answers questions.
#include <algorithm>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/answer_spans.h"
#include "kernels/base/status_macros.h"
#include "tools/flag_group.h"
#include "tools/flag_values.h"
#include "tools/line_format.h"
#include "tools/line_runner.h"

namespace quintet {
namespace {

struct ClassifyFlags {
  ModelFlags model;
  LineFlags lines;
  int64_t top_k = 1, max_answer_tokens = 30;
};

std::span<const float> Row(const Result& result, int64_t row) {
  return std::span(result.values)
      .subspan(static_cast<size_t>(row * result.columns), static_cast<size_t>(result.columns));
}

size_t Best(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

nlohmann::ordered_json JsonFloats(std::span<const float> values) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const float value : values) json.push_back(JsonFloat(value));
  return json;
}

// ---- Sequence classification: one label for a line ----

std::string FormatLabel(int64_t number, bool json, const ModelConfig& config,
                        const Result& result) {
  const std::span<const float> logits = Row(result, 0);
  const std::vector<double> probabilities = LabelProbabilities(logits, config.label_kind);
  const size_t best = Best(logits);
  if (!json) {
    return absl::StrFormat("%s\t%.6f\n", EscapeLine(config.label_names[best]), probabilities[best]);
  }
  nlohmann::ordered_json labels = nlohmann::ordered_json::array();
  for (size_t i = 0; i < logits.size(); ++i) {
    labels.push_back({{"label", config.label_names[i]},
                      {"probability", probabilities[i]},
                      {"logit", JsonFloat(logits[i])}});
  }
  return JsonLine({{"line", number},
                   {"label", config.label_names[best]},
                   {"labels", std::move(labels)},
                   {"usage", {{"input_tokens", result.input_tokens}}}});
}

// ---- Token classification: one label for each token ----

std::string FormatTokens(int64_t number, bool json, const ModelConfig& config,
                         const std::vector<TokenSpan>& spans, const Result& result) {
  std::string text;
  nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
  for (int64_t row = 0; row < result.rows; ++row) {
    const std::span<const float> logits = Row(result, row);
    const size_t best = Best(logits);
    const std::string& label = config.label_names[best];
    if (!json) {
      absl::StrAppend(&text, row == 0 ? "" : " ", EscapeLine(label));
      continue;
    }
    nlohmann::ordered_json token = {
        {"label", label}, {"probability", Softmax(logits)[best]}, {"logits", JsonFloats(logits)}};
    if (!spans.empty()) {
      const TokenSpan& span = spans[static_cast<size_t>(row)];
      token["token_id"] = span.id;
      token["begin_byte"] = span.begin_byte;
      token["end_byte"] = span.end_byte;
    }
    tokens.push_back(std::move(token));
  }
  return json ? JsonLine({{"line", number}, {"tokens", std::move(tokens)}}) : text + "\n";
}

// ---- Answers ----

std::string FormatAnswers(int64_t number, bool json, const ClassifyFlags& flags,
                          const Question& question, const Result& result) {
  const std::vector<AnswerSpan> best =
      BestSpans(result.values, question.context_begin, question.context_end,
                flags.max_answer_tokens, flags.top_k);
  std::string text;
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  for (const AnswerSpan& answer : best) {
    const TokenSpan& first =
        question.spans[static_cast<size_t>(answer.first - question.context_begin)];
    const TokenSpan& last =
        question.spans[static_cast<size_t>(answer.last - question.context_begin)];
    const std::string words =
        question.context.substr(first.begin_byte, last.end_byte - first.begin_byte);
    absl::StrAppend(&text, text.empty() ? "" : "\t", EscapeLine(words));
    answers.push_back({{"text", words},
                       {"begin_byte", first.begin_byte},
                       {"end_byte", last.end_byte},
                       {"probability", answer.probability}});
  }
  return json ? JsonLine({{"line", number}, {"answers", std::move(answers)}}) : text + "\n";
}

// Parses a line of input: QUESTION<TAB>CONTEXT or {"text": question, "pair": context}. *ids
// receives the token ids of the question, then those of the context; both include special tokens.
absl::StatusOr<Question> ReadQuestion(const Session& session, const ClassifyFlags& flags,
                                      const std::string& line, std::vector<int32_t>* ids) {
  std::string context;
  if (flags.lines.input == "json") {
    QT_ASSIGN_OR_RETURN(LineInput input, ReadInput(session, flags.lines, line, {"pair"}));
    const auto pair = input.fields.find("pair");
    if (pair == input.fields.end() || !pair->is_string()) {
      return absl::InvalidArgumentError("pair: expected the context as a string");
    }
    context = pair->get<std::string>();
    *ids = std::move(input.ids);
  } else {
    const size_t tab = line.find('\t');
    if (tab == std::string::npos) {
      return absl::InvalidArgumentError("expected QUESTION<TAB>CONTEXT");
    }
    context = line.substr(tab + 1);
    QT_ASSIGN_OR_RETURN(*ids,
                        EncodeText(session, line.substr(0, tab), flags.lines.add_special_tokens));
  }
  return AddContext(session, std::move(context), flags.lines.add_special_tokens, ids);
}

absl::StatusOr<LineJob> MakeJob(const Session& session, const ClassifyFlags& flags, int64_t number,
                                const std::string& line) {
  LineJob job;
  job.request.kind = RequestKind::kClassify;
  const bool json = flags.lines.output == "json";
  const ModelConfig& config = session.config;
  if (config.head == Head::kQuestionAnswering) {
    QT_ASSIGN_OR_RETURN(Question question, ReadQuestion(session, flags, line, &job.request.input));
    job.format = [number, json, &flags, question = std::move(question)](const Result& result,
                                                                        std::string* out) {
      *out += FormatAnswers(number, json, flags, question, result);
    };
    return job;
  }
  QT_ASSIGN_OR_RETURN(LineInput input, ReadInput(session, flags.lines, line));
  if (config.head == Head::kSequenceClassification) {
    job.format = [number, json, &config](const Result& result, std::string* out) {
      *out += FormatLabel(number, json, config, result);
    };
  } else {
    std::vector<TokenSpan> spans;  // empty if the line has token ids, no text
    if (!input.fields.contains("token_ids")) {
      QT_ASSIGN_OR_RETURN(
          auto all, session.tokenizer->EncodeWithSpans(input.text, flags.lines.add_special_tokens));
      spans = TruncateSpans(std::move(all), input.ids);
    }
    job.format = [number, json, &config, spans = std::move(spans)](const Result& result,
                                                                   std::string* out) {
      *out += FormatTokens(number, json, config, spans, result);
    };
  }
  job.request.input = std::move(input.ids);
  return job;
}

int Run(const ClassifyFlags& flags) {
  int exit_code = kExitDone;
  const SessionNeeds needs = NeedsOf(RequestKind::kClassify, flags.lines);
  std::unique_ptr<Session> session = OpenSession(flags.model, needs, &exit_code);
  if (session == nullptr) return exit_code;
  return RunLines(*session, flags.lines, [&](int64_t number, const std::string& line) {
    return MakeJob(*session, flags, number, line);
  });
}

}  // namespace

void AddClassifyCommand(CommandLine& line) {
  auto flags = std::make_shared<ClassifyFlags>();
  CLI::App* command = line.AddCommand(
      {"classify", "Classify lines or tokens, or answer questions, with the model's head.",
       "quintet classify --model DIR --output json < reviews.txt",
       "Output per input line: LABEL<TAB>PROBABILITY for sequence heads, one label per token for "
       "token heads, the\n"
       "answers for question-answering heads, whose input lines are QUESTION<TAB>CONTEXT (--input "
       "json: \"text\"\n"
       "and \"pair\"). --output json adds all logits, probabilities and byte offsets."},
      [flags] { return Run(*flags); });
  AddModelFlags(line, command, &flags->model);
  AddLineFlags(command, &flags->lines, {"text", "json"});
  FlagGroup answers(command, "Question answering");
  answers.Add("--top-k", &flags->top_k, "ANSWERS", "Number of answers per question. Range [1, 20].",
              InRange(1, 20));
  answers.Add("--max-answer-tokens", &flags->max_answer_tokens, "TOKENS",
              "Maximum answer length. Range [1, 4096].", InRange(1, 4096));
}

}  // namespace quintet
