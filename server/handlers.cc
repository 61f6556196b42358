#include "server/handlers.h"

#include <algorithm>
#include <limits>
#include <span>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/answer_spans.h"
#include "engine/embedding.h"
#include "kernels/base/status_macros.h"
#include "server/proto_conversion.h"

namespace quintet {
namespace {

bool WithSpecials(const v1::CallOptions& call) {
  return OrTrue(call.has_add_special_tokens(), call.add_special_tokens());
}

std::span<const float> Row(const Result& result, int64_t row) {
  return std::span(result.values)
      .subspan(static_cast<size_t>(row * result.columns), static_cast<size_t>(result.columns));
}

std::vector<v1::LabelScore> LabelScores(const ModelConfig& config, std::span<const float> logits,
                                        const std::vector<double>& probabilities) {
  std::vector<v1::LabelScore> labels(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    labels[i].set_label(config.label_names[i]);
    labels[i].set_logit(logits[i]);
    labels[i].set_probability(static_cast<float>(probabilities[i]));
  }
  return labels;
}

bool HasText(const TokenSpan& span) { return span.end_byte > span.begin_byte; }

// Prefixes the field name in an error of the engine with its path in the request: "num_beams"
// becomes "decoding.num_beams".
absl::Status UnderDecoding(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) || absl::StartsWith(status.message(), "input:"))
    return status;
  return absl::InvalidArgumentError(absl::StrCat("decoding.", status.message()));
}

// Bytes of memory for one token's log-probability with `top` alternatives: the sum for its copies
// in the engine result, in the response message and in the serialized message.
int64_t LogProbBytes(int64_t top) { return 112 + 64 * top; }

// Bytes of the three copies of a float value: in the result, the message, the serialized message.
constexpr int64_t kFloatForms = 3 * sizeof(float);
// Bytes of the three copies of a token: its TokenSpan, its v1::Token and the serialized v1::Token.
constexpr int64_t kTokenBytes = 200;

// Upper bound of the number of values in one row of an embedding.
int64_t EncodeColumns(const ModelConfig& config, const SentenceModules* modules) {
  return modules == nullptr ? config.d_model : std::max(config.d_model, modules->columns);
}

absl::StatusOr<Pooling> PoolingOf(v1::Pooling pooling) {
  switch (pooling) {
    case v1::POOLING_UNSPECIFIED:
      return Pooling::kModules;
    case v1::POOLING_MEAN:
      return Pooling::kMean;
    case v1::POOLING_NONE:
      return Pooling::kNone;
    case v1::POOLING_FIRST:
      return Pooling::kFirst;
    case v1::POOLING_LAST:
      return Pooling::kLast;
    case v1::POOLING_MAX:
      return Pooling::kMax;
    case v1::POOLING_MEAN_SQRT_LEN:
      return Pooling::kMeanSqrtLen;
    case v1::POOLING_WEIGHTED_MEAN:
      return Pooling::kWeightedMean;
    default:
      return UnknownEnumValue("options.pooling", pooling, v1::Pooling_MAX);
  }
}

int64_t ResponseBytes(const Request& request, const ModelConfig& config) {
  const int64_t rows = static_cast<int64_t>(request.input.size());
  switch (request.kind) {
    case RequestKind::kEncode:
      return kFloatForms * EncodeColumns(config, request.modules) *
             (request.pooling == Pooling::kNone ? std::max(rows, request.result_rows) : 1);
    case RequestKind::kClassify: {
      const int64_t labels = static_cast<int64_t>(config.label_names.size());
      // Bytes of memory of a LabelScore with its name: the message and its serialized copy.
      constexpr int64_t kLabelBytes = 160;
      const bool each_token = config.head != Head::kSequenceClassification;
      return (each_token ? rows : 1) * (kTokenBytes + labels * kLabelBytes);
    }
    case RequestKind::kScore: {
      int64_t tokens = 0;
      for (const std::vector<int32_t>& target : request.targets) {
        tokens += static_cast<int64_t>(target.size());
      }
      return tokens * LogProbBytes(request.top_logprobs);
    }
    case RequestKind::kGenerate: {
      const DecodingOptions& decoding = request.decoding;
      const int64_t sequences = std::max(decoding.num_beams, decoding.num_return_sequences);
      // Bytes of a token's text and id, in the engine result, the message and its serialized copy.
      constexpr int64_t kTextAndIds = 96;
      const int64_t token = kTextAndIds + (decoding.logprobs || decoding.top_logprobs > 0
                                               ? LogProbBytes(decoding.top_logprobs)
                                               : 0);
      const int64_t echoed = decoding.echo ? rows : 0;
      return sequences * (decoding.max_new_tokens + echoed) * token;
    }
  }
  return 0;
}

}  // namespace

int64_t ResponseBytes(const std::vector<Request>& requests, const ModelHost& host) {
  int64_t bytes = 0;
  for (const Request& request : requests) bytes += ResponseBytes(request, host.config());
  return bytes;
}

int64_t PaddedResponseBytes(const std::vector<Request>& requests, const ModelHost& host) {
  int64_t largest = 0;
  for (const Request& request : requests) {
    largest = std::max(largest, ResponseBytes(request, host.config()));
  }
  return largest * static_cast<int64_t>(requests.size());
}

namespace {

absl::StatusOr<PadMode> PadModeOf(const v1::EncodeOptions& options) {
  if (!v1::PadMode_IsValid(options.pad_mode())) {
    return UnknownEnumValue("options.pad_mode", options.pad_mode(), v1::PadMode_MAX);
  }
  return options.pad_mode() == v1::PAD_MODE_ZERO ? PadMode::kZero : PadMode::kAttend;
}

size_t PromptBytes(const v1::EncodeOptions& options, const ModelHost& host) {
  if (options.has_prompt()) return options.prompt().size();
  if (host.modules() == nullptr) return 0;
  const std::map<std::string, std::string>& prompts = host.modules()->prompts;
  const auto found = prompts.find(options.has_prompt_name() ? options.prompt_name()
                                                            : host.modules()->default_prompt);
  return found == prompts.end() ? 0 : found->second.size();
}

}  // namespace

int64_t EncodeResponseBound(const v1::Input& input, const v1::EncodeOptions& options,
                            const ModelHost& host, const InputLimits& limits) {
  // The number of input tokens. For text this is an upper bound: each token covers at least one
  // byte, and the tokenizer adds one end-of-sequence token.
  const int64_t tokens =
      input.content_case() == v1::Input::kText
          ? static_cast<int64_t>(PromptBytes(options, host) + input.text().size()) + 1
          : input.token_ids().ids_size();
  // pad_to is not checked yet; values over max_tokens will be refused.
  const int64_t padded = std::max<int64_t>(tokens, options.pad_to());
  const int64_t rows =
      options.pooling() == v1::POOLING_NONE ? std::min(padded, limits.max_tokens) : 1;
  return kFloatForms * EncodeColumns(host.config(), host.modules()) * rows;
}

int64_t EncodeResponseBound(const google::protobuf::RepeatedPtrField<v1::Input>& inputs,
                            const v1::EncodeOptions& options, const ModelHost& host,
                            const InputLimits& limits) {
  int64_t bytes = 0;
  for (const v1::Input& input : inputs) bytes += EncodeResponseBound(input, options, host, limits);
  return bytes;
}

int64_t TokenizeResponseBound(const std::string& text) {
  return kTokenBytes * (static_cast<int64_t>(text.size()) + 1);
}

absl::StatusOr<std::vector<Request>> GenerateRequests(const v1::GenerateRequest& proto,
                                                      const ModelHost& host,
                                                      const InputLimits& limits, bool stream) {
  const Tokenizer* tokenizer = host.tokenizer();
  QT_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      TokenizeInput(proto.input(), proto.call(), tokenizer, limits, "input"));
  QT_ASSIGN_OR_RETURN(DecodingRequest decoding,
                      DecodingFromProto(proto.decoding(), tokenizer, limits));
  if (decoding.do_sample.value_or(host.defaults().do_sample.value_or(false)) &&
      !decoding.seed.has_value()) {
    static thread_local absl::BitGen random;
    decoding.seed = absl::Uniform<uint64_t>(random);
  }
  Request request;
  absl::StatusOr<DecodingOptions> options =
      ResolveDecoding(decoding, host.defaults(), host.config(), host.options().decoding, ids);
  if (!options.ok()) return UnderDecoding(options.status());
  request.kind = RequestKind::kGenerate;
  request.input = std::move(ids);
  request.decoding = *std::move(options);
  request.stream = stream;
  request.skip_special_tokens =
      OrTrue(proto.decoding().has_skip_special_tokens(), proto.decoding().skip_special_tokens());
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return requests;
}

void WriteGenerate(const v1::GenerateRequest& proto, const Result& result,
                   v1::GenerateResponse* response) {
  const v1::DecodingOptions& decoding = proto.decoding();
  SequenceOptions options;
  options.return_text = OrTrue(decoding.has_return_text(), decoding.return_text());
  options.return_token_ids = OrTrue(decoding.has_return_token_ids(), decoding.return_token_ids());
  options.return_scores = decoding.return_scores();
  for (size_t i = 0; i < result.sequences.size(); ++i) {
    WriteSequence(result.sequences[i], static_cast<int>(i), options, response->add_sequences());
  }
  response->set_seed(result.seed);
}

absl::StatusOr<Request> EncodeRequestOf(const v1::Input& input, const v1::EncodeOptions& options,
                                        const v1::CallOptions& call, const ModelHost& host,
                                        const InputLimits& limits, const std::string& field) {
  EmbeddingOptions asked;
  QT_ASSIGN_OR_RETURN(asked.pooling, PoolingOf(options.pooling()));
  asked.normalize = options.normalize();
  if (options.has_prompt()) asked.prompt = options.prompt();
  if (options.has_prompt_name()) asked.prompt_name = options.prompt_name();
  asked.pad_to = options.pad_to();
  QT_ASSIGN_OR_RETURN(asked.pad_mode, PadModeOf(options));
  if (!v1::VectorType_IsValid(options.vector_type())) {
    return UnknownEnumValue("options.vector_type", options.vector_type(), v1::VectorType_MAX);
  }
  const absl::StatusOr<Embedding> embedding =
      Embedding::Create(asked, host.config(), host.modules(), host.tokenizer(), limits.max_tokens);
  if (!embedding.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("options.", embedding.status().message()));
  }
  if (input.content_case() == v1::Input::kTokenIds) {
    if (const absl::Status status = embedding->CheckTokenIds(); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("options.", status.message()));
    }
  }
  Request request;
  QT_ASSIGN_OR_RETURN(request.input,
                      TokenizeInput(input, call, host.tokenizer(), limits, field, &*embedding));
  embedding->Fill(input.content_case() == v1::Input::kText, &request);
  return request;
}

absl::StatusOr<std::vector<Request>> ScoreRequests(const v1::ScoreRequest& proto,
                                                   const ModelHost& host,
                                                   const InputLimits& limits) {
  if (proto.top_logprobs() > kMaxTopLogProbs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "top_logprobs: must be at most ", kMaxTopLogProbs, ", got ", proto.top_logprobs()));
  }
  Request request;
  request.kind = RequestKind::kScore;
  request.top_logprobs = static_cast<int32_t>(proto.top_logprobs());
  request.sliding_window = proto.sliding_window();
  request.prefix_lm = proto.prefix_lm();
  QT_ASSIGN_OR_RETURN(
      request.input, TokenizeInput(proto.input(), proto.call(), host.tokenizer(), limits, "input"));
  for (int i = 0; i < proto.targets_size(); ++i) {
    QT_ASSIGN_OR_RETURN(std::vector<int32_t> target,
                        TokenizeInput(proto.targets(i), proto.call(), host.tokenizer(), limits,
                                      absl::StrCat("targets[", i, "]")));
    request.targets.push_back(std::move(target));
  }
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return requests;
}

void WriteScores(const Result& result, v1::ScoreResponse* response) {
  for (const ScoredTarget& target : result.targets) {
    v1::TargetScore* score = response->add_scores();
    score->set_log_prob(target.total);
    score->set_tokens(static_cast<uint32_t>(target.tokens.size()));
    WriteTokenLogProbs(target.tokens, score->mutable_logprobs());
  }
}

absl::Status ClassifyHandler::AddContext(const v1::ClassifyRequest& proto, const ModelHost& host,
                                         const InputLimits& limits, std::vector<int32_t>* ids) {
  const size_t index = items_.size();
  const v1::Input& pair = proto.pairs(static_cast<int>(index));
  const auto bad = [&](const char* part, const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat("pairs[", index, "]", part, ": ", text...));
  };
  if (pair.content_case() != v1::Input::kText || host.tokenizer() == nullptr) {
    return bad("", "must be text");
  }
  if (static_cast<int64_t>(pair.text().size()) > limits.max_text_bytes) {
    return bad(".text", "must be at most ", limits.max_text_bytes, " bytes, got ",
               pair.text().size());
  }
  Item item;
  item.context_begin = static_cast<int64_t>(ids->size());
  auto spans = host.tokenizer()->EncodeWithSpans(pair.text(), WithSpecials(proto.call()));
  if (!spans.ok()) return bad(".text", spans.status().message());
  item.spans = *std::move(spans);
  for (const TokenSpan& span : item.spans) ids->push_back(span.id);
  if (static_cast<int64_t>(ids->size()) > limits.max_tokens) {
    return bad("", "question and context must be at most ", limits.max_tokens, " tokens, got ",
               ids->size());
  }
  items_.push_back(std::move(item));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Request>> ClassifyHandler::Prepare(const v1::ClassifyRequest& proto,
                                                              const ModelHost& host,
                                                              const InputLimits& limits) {
  const bool questions = host.config().head == Head::kQuestionAnswering;
  if (proto.pairs_size() != (questions ? proto.inputs_size() : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("pairs: must hold ", questions ? proto.inputs_size() : 0,
                     " contexts for this model, got ", proto.pairs_size()));
  }
  if (proto.top_k() > 20) {
    return absl::InvalidArgumentError(absl::StrCat("top_k: must be 1 to 20, got ", proto.top_k()));
  }
  std::vector<Request> requests;
  for (int i = 0; i < proto.inputs_size(); ++i) {
    const v1::Input& input = proto.inputs(i);
    QT_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                        TokenizeInput(input, proto.call(), host.tokenizer(), limits,
                                      absl::StrCat("inputs[", i, "]")));
    if (questions) {
      QT_RETURN_IF_ERROR(AddContext(proto, host, limits, &ids));
    } else {
      items_.emplace_back();
      if (input.content_case() == v1::Input::kText) {
        QT_ASSIGN_OR_RETURN(
            std::vector<TokenSpan> spans,
            host.tokenizer()->EncodeWithSpans(input.text(), WithSpecials(proto.call())));
        items_.back().spans = TruncateSpans(std::move(spans), ids);
      }
    }
    Request request;
    request.kind = RequestKind::kClassify;
    items_.back().ids = ids;
    request.input = std::move(ids);
    requests.push_back(std::move(request));
  }
  return requests;
}

void ClassifyHandler::WriteTokenLabels(const Item& item, const ModelHost& host,
                                       const Result& result, v1::Classification* to) {
  for (int64_t row = 0; row < result.rows; ++row) {
    v1::TokenLabel* token = to->add_tokens();
    token->set_token_id(static_cast<uint32_t>(item.ids[static_cast<size_t>(row)]));
    if (!item.spans.empty()) {
      const TokenSpan& span = item.spans[static_cast<size_t>(row)];
      token->set_begin_byte(span.begin_byte);
      token->set_end_byte(span.end_byte);
    }
    const std::span<const float> logits = Row(result, row);
    std::vector<v1::LabelScore> labels = LabelScores(host.config(), logits, Softmax(logits));
    std::stable_sort(labels.begin(), labels.end(),
                     [](const auto& a, const auto& b) { return a.logit() > b.logit(); });
    for (v1::LabelScore& label : labels) *token->add_labels() = std::move(label);
  }
}

void ClassifyHandler::WriteSpans(const Item& item, const v1::ClassifyRequest& proto,
                                 const std::string& context, const Result& result,
                                 v1::Classification* to) {
  // Skips tokens without text at the beginning and the end of the context, for example eos: they
  // cannot be part of an answer.
  int64_t first = 0, end = static_cast<int64_t>(item.spans.size());
  while (first < end && !HasText(item.spans[static_cast<size_t>(first)])) ++first;
  while (end > first && !HasText(item.spans[static_cast<size_t>(end - 1)])) --end;
  const int64_t longest = proto.max_answer_tokens() == 0 ? 30 : proto.max_answer_tokens();
  const std::vector<quintet::AnswerSpan> best =
      BestSpans(result.values, item.context_begin + first, item.context_begin + end, longest,
                std::max<int64_t>(proto.top_k(), 1));
  for (const quintet::AnswerSpan& span : best) {
    const TokenSpan& from = item.spans[static_cast<size_t>(span.first - item.context_begin)];
    const TokenSpan& until = item.spans[static_cast<size_t>(span.last - item.context_begin)];
    v1::AnswerSpan* answer = to->add_answers();
    answer->set_begin_byte(from.begin_byte);
    answer->set_end_byte(until.end_byte);
    answer->set_text(context.substr(from.begin_byte, until.end_byte - from.begin_byte));
    answer->set_score(static_cast<float>(span.probability));
  }
}

void ClassifyHandler::Write(const v1::ClassifyRequest& proto, const ModelHost& host,
                            const std::vector<Result>& results,
                            v1::ClassifyResponse* response) const {
  for (size_t i = 0; i < results.size(); ++i) {
    v1::Classification* to = response->add_results();
    switch (host.config().head) {
      case Head::kSequenceClassification: {
        const std::span<const float> logits = Row(results[i], 0);
        for (v1::LabelScore& label : LabelScores(
                 host.config(), logits, LabelProbabilities(logits, host.config().label_kind))) {
          *to->add_labels() = std::move(label);
        }
        break;
      }
      case Head::kTokenClassification:
        WriteTokenLabels(items_[i], host, results[i], to);
        break;
      default:
        WriteSpans(items_[i], proto, proto.pairs(static_cast<int>(i)).text(), results[i], to);
        break;
    }
  }
}

absl::Status WriteTokens(const v1::TokenizeRequest& proto, const ModelHost& host,
                         const InputLimits& limits, ReserveBytes reserve,
                         v1::TokenizeResponse* response) {
  if (host.tokenizer() == nullptr)
    return absl::FailedPreconditionError("this model has no tokenizer");
  if (static_cast<int64_t>(proto.text().size()) > limits.max_text_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("text: must be at most ", limits.max_text_bytes,
                                                   " bytes, got ", proto.text().size()));
  }
  auto spans = host.tokenizer()->EncodeWithSpans(proto.text(), WithSpecials(proto.call()));
  if (!spans.ok())
    return absl::InvalidArgumentError(absl::StrCat("text: ", spans.status().message()));
  const int64_t bytes = kTokenBytes * static_cast<int64_t>(spans->size());
  QT_RETURN_IF_ERROR(reserve(bytes));
  response->mutable_tokens()->Reserve(static_cast<int>(spans->size()));
  for (const TokenSpan& span : *spans) {
    v1::Token* token = response->add_tokens();
    token->set_id(static_cast<uint32_t>(span.id));
    token->set_piece(host.tokenizer()->Piece(span.id));
    token->set_begin_byte(span.begin_byte);
    token->set_end_byte(span.end_byte);
  }
  return absl::OkStatus();
}

absl::Status WriteText(const v1::DetokenizeRequest& proto, const ModelHost& host,
                       ReserveBytes reserve, v1::DetokenizeResponse* response) {
  if (host.tokenizer() == nullptr)
    return absl::FailedPreconditionError("this model has no tokenizer");
  int64_t text_bytes = 0;
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(proto.token_ids_size()));
  for (int i = 0; i < proto.token_ids_size(); ++i) {
    if (proto.token_ids(i) >= host.config().vocab) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token_ids[", i, "]: must be below ", host.config().vocab, ", got ", proto.token_ids(i)));
    }
    ids.push_back(static_cast<int32_t>(proto.token_ids(i)));
    text_bytes += static_cast<int64_t>(host.tokenizer()->Piece(ids.back()).size());
  }
  // Up to four copies of the text exist at one time: in the string that grows during decoding, in
  // the decoded text, in the response message and in the serialized message.
  constexpr int64_t kTextForms = 4;
  const int64_t id_bytes = static_cast<int64_t>(ids.size() * sizeof(int32_t));
  QT_RETURN_IF_ERROR(reserve(id_bytes + kTextForms * text_bytes));
  response->set_text(host.tokenizer()->Decode(
      ids, OrTrue(proto.has_skip_special_tokens(), proto.skip_special_tokens())));
  return absl::OkStatus();
}

}  // namespace quintet
