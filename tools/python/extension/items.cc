#include "tools/python/extension/items.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <numeric>
#include <span>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "kernels/base/status_macros.h"
#include "nanobind/ndarray.h"

namespace quintet::python {
namespace {

// Returns uninitialised memory, to be freed with std::free.
float* AllocateFloats(int64_t count) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(float);
  const bool large = bytes >= 2 * kHugePage;
  const size_t alignment = large ? kHugePage : size_t{64};
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  if (large) madvise(memory, rounded, MADV_HUGEPAGE);
  return static_cast<float*>(memory);
}

// Takes an object or list of results out of the garbage collector's lists. Results are trees, which
// reference counts free alone; the collector would visit all results of a long call again and
// again while more of them are made, which takes longer than to make them.
template <typename T>
T Untracked(T object) {
  PyObject_GC_UnTrack(object.ptr());
  return object;
}
template <typename... Fields>
nb::object New(const nb::object& type, Fields&&... fields) {
  return Untracked(type(std::forward<Fields>(fields)...));
}

// Returns the untracked list of of(element) for each element of a range.
template <typename Range, typename Of>
nb::list ListOf(const Range& range, const Of& of) {
  nb::list list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(std::size(range))));
  if (!list.is_valid()) throw nb::python_error();
  Py_ssize_t i = 0;
  for (const auto& element : range) {
    PyList_SET_ITEM(list.ptr(), i++, nb::object(of(element)).release().ptr());
  }
  return Untracked(std::move(list));
}

nb::list IdList(std::span<const int32_t> ids) {
  return ListOf(ids, [](int32_t id) { return nb::int_(id); });
}

nb::list LogProbs(const std::vector<TokenLogProb>& tokens) {
  return ListOf(tokens, [](const TokenLogProb& token) {
    const nb::list top = ListOf(token.alternatives, [](const auto& alternative) {
      return nb::make_tuple(alternative.first, alternative.second);
    });
    return New(Types().token_logprob, token.token, token.log_prob, top);
  });
}

class GenerateItem : public Item {
 public:
  using Item::Item;

  absl::Status Complete(Request* request) override {
    const Session& session = *options_->session;
    DecodingLimits limits;
    limits.max_input_tokens = static_cast<uint32_t>(session.flags.max_input_tokens);
    QT_ASSIGN_OR_RETURN(request->decoding, ResolveDecoding(options_->decoding, session.defaults,
                                                           session.config, limits, request->input));
    const DecodingOptions& decoding = request->decoding;
    request->skip_special_tokens = options_->skip_special_tokens;
    request->stream = options_->stream;
    request->detokenize = options_->stream || !decoding.stop.empty();
    detokenize_ = !request->detokenize && session.tokenizer != nullptr;
    scores_ = decoding.return_scores;
    logprobs_ = decoding.logprobs || decoding.top_logprobs > 0;
    samples_ = decoding.do_sample;
    return absl::OkStatus();
  }

  absl::Status Finish(Result result) override {
    if (detokenize_) {
      for (GeneratedSequence& sequence : result.sequences) {
        sequence.text =
            options_->session->tokenizer->Decode(sequence.token_ids, options_->skip_special_tokens);
      }
    }
    return Item::Finish(std::move(result));
  }

  nb::object ToPython() override {
    const nb::list sequences = ListOf(result_.sequences, [this](const GeneratedSequence& s) {
      return New(Types().sequence, ToStr(s.text), IdList(s.token_ids),
                 FinishReasonName(s.finish_reason),
                 scores_ ? nb::object(nb::float_(s.score)) : nb::none(),
                 logprobs_ ? nb::object(LogProbs(s.logprobs)) : nb::none(),
                 s.matched_stop.empty() ? nb::none() : ToStr(s.matched_stop));
    });
    return New(Types().generation, sequences, Usage(),
               samples_ ? nb::object(nb::int_(result_.seed)) : nb::none());
  }

 private:
  bool detokenize_ = false, scores_ = false, logprobs_ = false, samples_ = false;
};

class EncodeItem : public Item {
 public:
  EncodeItem(std::shared_ptr<const CallOptions> options, Input input,
             std::shared_ptr<Embeddings> embeddings, int64_t row)
      : Item(std::move(options), std::move(input)), embeddings_(std::move(embeddings)), row_(row) {}

  absl::Status Complete(Request* request) override {
    options_->embedding->Fill(input_.is_text, request);
    return absl::OkStatus();
  }

  absl::Status Finish(Result result) override {
    if (embeddings_ == nullptr) return Item::Finish(std::move(result));
    std::copy(result.values.begin(), result.values.end(), embeddings_->Row(row_));
    return absl::OkStatus();
  }

  nb::object ToPython() override {
    const bool pooled = options_->embedding_options.pooling != Pooling::kNone;
    const int64_t rows = pooled ? -1 : result_.rows;
    return ArrayOf(std::move(result_.values), rows, result_.columns);
  }

 private:
  const std::shared_ptr<Embeddings> embeddings_;
  const int64_t row_;
};

class ScoreItem : public Item {
 public:
  ScoreItem(std::shared_ptr<const CallOptions> options, Input input, std::vector<Input> targets)
      : Item(std::move(options), std::move(input)), targets_(std::move(targets)) {}

  absl::Status Complete(Request* request) override {
    if (targets_.empty() || targets_.size() > kMaxTargets) {
      return absl::InvalidArgumentError(
          absl::StrCat("targets: expected 1 to ", kMaxTargets, ", got ", targets_.size()));
    }
    for (const Input& target : targets_) {
      std::vector<int32_t> ids = target.ids;
      if (target.is_text) {
        QT_ASSIGN_OR_RETURN(
            ids, EncodeText(*options_->session, target.text, options_->target_special_tokens));
      }
      request->targets.push_back(std::move(ids));
    }
    request->top_logprobs = static_cast<int32_t>(options_->top_logprobs);
    request->sliding_window = options_->sliding_window;
    request->prefix_lm = options_->prefix_lm;
    return absl::OkStatus();
  }

  nb::object ToPython() override {
    const nb::list targets = ListOf(result_.targets, [](const ScoredTarget& target) {
      return New(Types().target_score, target.total, LogProbs(target.tokens));
    });
    return New(Types().scores, targets, Usage());
  }

 private:
  std::vector<Input> targets_;
};

class ClassifyItem : public Item {
 public:
  ClassifyItem(std::shared_ptr<const CallOptions> options, Input input, std::string context)
      : Item(std::move(options), std::move(input)), context_(std::move(context)) {}

  absl::Status Complete(Request* request) override {
    const Session& session = *options_->session;
    head_ = session.config.head;
    label_kind_ = session.config.label_kind;
    if (head_ == Head::kQuestionAnswering) {
      QT_ASSIGN_OR_RETURN(question_, AddContext(session, std::move(context_),
                                                options_->add_special_tokens, &request->input));
      return absl::OkStatus();
    }
    labels_ = session.config.label_names;
    ids_ = request->input;
    if (head_ == Head::kTokenClassification && input_.is_text) {
      QT_ASSIGN_OR_RETURN(auto spans, session.tokenizer->EncodeWithSpans(
                                          input_.text, options_->add_special_tokens));
      question_.spans = TruncateSpans(std::move(spans), request->input);
    }
    return absl::OkStatus();
  }

  nb::object ToPython() override {
    if (head_ == Head::kQuestionAnswering) return AnswersToPython();
    if (head_ == Head::kTokenClassification) return TokensToPython();
    const std::span<const float> logits = Row(0);
    return New(Types().classification, labels_[Best(logits)],
               LabelList(logits, LabelProbabilities(logits, label_kind_), InOrder(logits.size())),
               Usage());
  }

 private:
  std::span<const float> Row(int64_t row) const {
    return std::span(result_.values)
        .subspan(static_cast<size_t>(row * result_.columns), static_cast<size_t>(result_.columns));
  }
  static size_t Best(std::span<const float> logits) {
    return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  // Returns the labels with their scores, in the order of `labels`.
  nb::list LabelList(std::span<const float> logits, const std::vector<double>& probabilities,
                     const std::vector<size_t>& labels) const {
    return ListOf(labels, [&](size_t i) {
      return New(Types().label_score, ToStr(labels_[i]), probabilities[i], logits[i]);
    });
  }
  static std::vector<size_t> InOrder(size_t count) {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    return order;
  }
  static std::vector<size_t> BestFirst(std::span<const float> logits) {
    std::vector<size_t> order = InOrder(logits.size());
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    return order;
  }

  nb::object TokensToPython() const {
    const nb::list tokens = ListOf(InOrder(ids_.size()), [this](size_t at) {
      const std::span<const float> logits = Row(static_cast<int64_t>(at));
      const std::vector<double> probabilities = Softmax(logits);
      const std::vector<size_t> order = BestFirst(logits);
      const bool spans = !question_.spans.empty();
      return New(Types().token_label, ids_[at], ToStr(labels_[order[0]]), probabilities[order[0]],
                 LabelList(logits, probabilities, order),
                 spans ? nb::object(nb::int_(question_.spans[at].begin_byte)) : nb::none(),
                 spans ? nb::object(nb::int_(question_.spans[at].end_byte)) : nb::none());
    });
    return New(Types().token_classification, tokens, Usage());
  }

  nb::object AnswersToPython() const {
    const std::vector<AnswerSpan> spans =
        BestSpans(result_.values, question_.context_begin, question_.context_end,
                  options_->max_answer_tokens, options_->top_k);
    const nb::list answers = ListOf(spans, [this](const AnswerSpan& span) {
      const TokenSpan& first =
          question_.spans[static_cast<size_t>(span.first - question_.context_begin)];
      const TokenSpan& last =
          question_.spans[static_cast<size_t>(span.last - question_.context_begin)];
      return New(
          Types().answer,
          ToStr(question_.context.substr(first.begin_byte, last.end_byte - first.begin_byte)),
          first.begin_byte, last.end_byte, span.probability);
    });
    return New(Types().answers, answers, Usage());
  }

  std::string context_;
  Question question_;  // token classification: only the spans of the input's tokens
  Head head_ = Head::kNone;
  LabelKind label_kind_{};
  std::vector<std::string> labels_;
  std::vector<int32_t> ids_;
};

}  // namespace

Embeddings::Embeddings(int64_t row_count, int64_t column_count)
    : rows(row_count), columns(column_count), values(AllocateFloats(row_count * column_count)) {}

void Embeddings::FillWithNan(int64_t row) {
  std::fill_n(Row(row), columns, std::numeric_limits<float>::quiet_NaN());
}

int64_t Item::DeadlineOf(const CallOptions& options) {
  if (options.timeout_s <= 0) return std::numeric_limits<int64_t>::max();
  return MonotonicMicros() + static_cast<int64_t>(std::llround(options.timeout_s * 1e6));
}

absl::StatusOr<Request> Item::Prepare() {
  Request request;
  request.kind = options_->kind;
  request.deadline_us = deadline_us_;
  request.adapter = options_->adapter;
  const std::optional<Embedding>& embedding = options_->embedding;
  QT_ASSIGN_OR_RETURN(request.input,
                      IdsOf(*options_->session, input_, options_->add_special_tokens,
                            options_->truncate, embedding.has_value() ? &*embedding : nullptr));
  QT_RETURN_IF_ERROR(Complete(&request));
  return request;
}

absl::Status Item::Finish(Result result) {
  result_ = std::move(result);
  return absl::OkStatus();
}

nb::object Item::Usage() const {
  return New(Types().usage, result_.input_tokens, result_.prefix_tokens, result_.output_tokens,
             result_.cached_tokens);
}

std::unique_ptr<Item> MakeItem(const std::shared_ptr<const CallOptions>& options, nb::handle input,
                               nb::handle extra, std::shared_ptr<Embeddings> embeddings,
                               int64_t row) {
  Input read = ReadInput(input, "input");
  switch (options->kind) {
    case RequestKind::kGenerate:
      return std::make_unique<GenerateItem>(options, std::move(read));
    case RequestKind::kEncode:
      return std::make_unique<EncodeItem>(options, std::move(read), std::move(embeddings), row);
    case RequestKind::kScore:
      return std::make_unique<ScoreItem>(options, std::move(read), ReadInputs(extra, "targets"));
    default: {
      std::string context;
      if (!extra.is_none()) {
        if (!PyUnicode_Check(extra.ptr())) {
          ThrowType(absl::StrCat("contexts: expected a str, got ",
                                 nb::type_name(extra.type()).c_str(),
                                 ": answers are parts of this text"));
        }
        context = ReadInput(extra, "contexts").text;
      }
      return std::make_unique<ClassifyItem>(options, std::move(read), std::move(context));
    }
  }
}

nb::object ChunkToPython(const TokenChunk& chunk) {
  return New(Types().chunk, ToStr(chunk.text), IdList(chunk.ids), chunk.index);
}

nb::object ArrayOf(std::vector<float> values, int64_t rows, int64_t columns) {
  auto* const held = new std::vector<float>(std::move(values));
  const nb::capsule owner(held,
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const size_t shape[2] = {static_cast<size_t>(rows < 0 ? columns : rows),
                           static_cast<size_t>(columns)};
  return nb::cast(nb::ndarray<nb::numpy, float>(held->data(), rows < 0 ? 1 : 2, shape, owner));
}

nb::object ArrayOf(std::shared_ptr<Embeddings> embeddings) {
  auto* const held = new std::shared_ptr<Embeddings>(std::move(embeddings));
  const nb::capsule owner(
      held, [](void* p) noexcept { delete static_cast<std::shared_ptr<Embeddings>*>(p); });
  const size_t shape[2] = {static_cast<size_t>((*held)->rows),
                           static_cast<size_t>((*held)->columns)};
  return nb::cast(nb::ndarray<nb::numpy, float>((*held)->values, 2, shape, owner));
}

nb::object ToStr(const std::string& text) {
  PyObject* const str =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (str == nullptr) throw nb::python_error();
  return nb::steal(str);
}

}  // namespace quintet::python
