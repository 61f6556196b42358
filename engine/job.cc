#include "engine/job.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

constexpr int64_t kScoreSequences = 16;  // targets of one request prefilled in parallel

absl::Status CheckIds(const char* field, std::span<const int32_t> ids, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "]: token id ", ids[i], " is not in [0, ", vocab, ")"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> StartToken(const ModelConfig& config) {
  if (config.decoder_start_id >= 0) return config.decoder_start_id;
  if (config.pad_id >= 0) return config.pad_id;
  return absl::FailedPreconditionError(
      "the model's config has neither decoder_start_token_id nor pad_token_id");
}

// Returns the input row whose hidden state a sequence classifier reads. Models with an encoder: the
// row of the last eos. Causal models: the row of the last token that is not padding; 0 if all
// tokens are padding.
absl::StatusOr<int64_t> ClassifiedRow(const std::vector<int32_t>& input,
                                      const ModelConfig& config) {
  int64_t row = static_cast<int64_t>(input.size()) - 1;
  if (!config.has_encoder()) {
    while (row > 0 && input[row] == config.pad_id) --row;
    return row;
  }
  for (; row >= 0; --row) {
    const auto& eos = config.eos_ids;
    if (std::find(eos.begin(), eos.end(), input[row]) != eos.end()) return row;
  }
  return absl::InvalidArgumentError(
      "input: sequence classification reads the last end-of-sequence token, and there is none");
}

absl::Status PlanGenerate(const ModelConfig& config, const Tokenizer* tokenizer,
                          const Capacity& capacity, Job* job) {
  const DecodingOptions& options = job->request.decoding;
  QT_RETURN_IF_ERROR(CheckDecoding(options, config.vocab));
  if (!options.stop.empty() && (tokenizer == nullptr || !job->request.detokenize)) {
    return absl::InvalidArgumentError(
        tokenizer == nullptr ? "stop: stop strings need a tokenizer, but none is loaded"
                             : "stop: stop strings need detokenize");
  }
  if (!config.has_encoder() && config.max_positions > 0) {
    const int64_t wanted = static_cast<int64_t>(options.prompt.size()) + options.max_new_tokens;
    if (wanted > config.max_positions) {
      return absl::InvalidArgumentError(absl::StrCat(
          "max_new_tokens: prompt (", options.prompt.size(), ") + new tokens (",
          options.max_new_tokens, ") exceed the model's ", config.max_positions, " positions"));
    }
  }
  job->result.seed = options.seed;
  job->result.prefix_tokens = config.has_encoder() ? options.prompt.size() - 1 : 0;
  job->work = Generation::Create(job->request, job->request.detokenize ? tokenizer : nullptr,
                                 config.vocab, capacity.page_size);
  return absl::OkStatus();
}

absl::Status PlanScore(const ModelConfig& config, const Capacity& capacity, Job* job) {
  const Request& request = job->request;
  if (request.targets.empty()) return absl::InvalidArgumentError("targets: at least one is needed");
  if (request.top_logprobs < 0 || request.top_logprobs > 20) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_logprobs: ", request.top_logprobs, " is not in [0, 20]"));
  }
  int64_t longest = 0;
  for (size_t i = 0; i < request.targets.size(); ++i) {
    const std::string field = absl::StrCat("targets[", i, "]");
    if (request.targets[i].empty()) return absl::InvalidArgumentError(field + ": empty");
    QT_RETURN_IF_ERROR(CheckIds(field.c_str(), request.targets[i], config.vocab));
    longest = std::max<int64_t>(longest, request.targets[i].size());
  }
  QT_RETURN_IF_ERROR(CheckAttentionScope(request, config));
  std::vector<int32_t> prefix = config.has_encoder() ? request.decoding.prompt : request.input;
  QT_RETURN_IF_ERROR(CheckIds("prompt", prefix, config.vocab));
  if (prefix.empty()) {
    QT_ASSIGN_OR_RETURN(const int32_t start, StartToken(config));
    prefix = {start};
  }
  const int64_t positions = static_cast<int64_t>(prefix.size()) + longest - 1;
  if (!config.has_encoder() && config.max_positions > 0 && positions > config.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("targets: prompt and target take ", positions,
                                                   " positions, the model has ",
                                                   config.max_positions));
  }
  job->result.targets.resize(request.targets.size());
  if (!config.has_encoder()) {
    // A sliding window as long as the whole sequence hides nothing; hence no mask is needed.
    const int64_t window = request.sliding_window < positions ? request.sliding_window : 0;
    job->work = std::make_unique<PackedScoring>(
        std::move(prefix), request.targets,
        PackedScoring::AttentionScope{.window = window, .prefix_lm = request.prefix_lm},
        capacity.encode_tokens);
    return absl::OkStatus();
  }
  const int64_t sequences = std::min(kScoreSequences, capacity.running_sequences);
  job->work = std::make_unique<TeacherForcing>(TeacherForcing::Scoring(
      std::move(prefix), job->request.targets, sequences, capacity.page_size));
  return absl::OkStatus();
}

absl::Status PlanClassify(const ModelConfig& config, const Capacity& capacity, Job* job) {
  const std::vector<int32_t>& input = job->request.input;
  int64_t row = -1;
  if (config.head == Head::kSequenceClassification) {
    QT_ASSIGN_OR_RETURN(row, ClassifiedRow(input, config));
  }
  if (config.classifies_input()) {
    job->classify_encoded = true;
    job->encoded_row = row;
    return absl::OkStatus();
  }
  std::vector<int32_t> tokens = input;  // shifted right
  QT_ASSIGN_OR_RETURN(const int32_t start, StartToken(config));
  tokens.pop_back();
  tokens.insert(tokens.begin(), start);
  job->work = std::make_unique<TeacherForcing>(
      TeacherForcing::States(std::move(tokens), row, capacity.page_size));
  return absl::OkStatus();
}

absl::Status Plan(const ModelConfig& config, const Tokenizer* tokenizer, const Capacity& capacity,
                  Job* job) {
  switch (job->kind()) {
    case RequestKind::kGenerate:
      return PlanGenerate(config, tokenizer, capacity, job);
    case RequestKind::kScore:
      return PlanScore(config, capacity, job);
    case RequestKind::kClassify:
      return PlanClassify(config, capacity, job);
    case RequestKind::kEncode:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError("kind: unknown");
}

absl::Status CheckFits(const Job& job, const ModelConfig& config, const Capacity& capacity) {
  const auto too_much = [](const char* what, int64_t needed, int64_t limit) {
    return absl::InvalidArgumentError(absl::StrCat("the request can never fit: it needs ", needed,
                                                   " ", what, ", the limit is ", limit));
  };
  const int64_t length = static_cast<int64_t>(job.request.input.size());
  if (job.needs.encode_tokens > capacity.encode_tokens) {
    return too_much("encoder tokens", job.needs.encode_tokens, capacity.encode_tokens);
  }
  if (!config.has_encoder() && config.max_positions > 0 && length > config.max_positions) {
    return too_much("positions", length, config.max_positions);
  }
  if (job.needs.sequences > capacity.running_sequences) {
    return too_much("running sequences", job.needs.sequences, capacity.running_sequences);
  }
  if (job.needs.pages > capacity.pages) {
    constexpr int64_t kMib = int64_t{1} << 20;
    return absl::InvalidArgumentError(
        absl::StrCat("the request can never fit: it needs ",
                     (job.needs.pages * capacity.page_bytes + kMib - 1) / kMib,
                     " MiB of KV cache, the model has ",
                     capacity.pages * capacity.page_bytes / kMib, " MiB: raise --cache-memory"));
  }
  if (job.queue_tokens > capacity.queue_tokens) {
    return too_much("queue tokens", job.queue_tokens, capacity.queue_tokens);
  }
  return absl::OkStatus();
}

}  // namespace

void Job::MoveTo(JobState next) {
  QT_CHECK_GT(static_cast<int>(next), static_cast<int>(state));
  state = next;
}

void Job::FillTiming(int64_t now_us) {
  Timing& timing = result.timing;
  timing.queue_us = admitted_us - submitted_us;
  timing.encode_us = encoded_us - admitted_us;
  timing.first_token_us = first_token_us == 0 ? 0 : first_token_us - submitted_us;
  timing.decode_us = now_us - encoded_us;
  timing.total_us = now_us - submitted_us;
}

void Job::CountScoredTokens() {
  for (const ScoredTarget& target : result.targets) result.output_tokens += target.tokens.size();
}

absl::StatusOr<std::unique_ptr<Job>> PlanJob(Request request, const ModelConfig& config,
                                             const Tokenizer* tokenizer, const Capacity& capacity) {
  if (request.sink == nullptr) return absl::InvalidArgumentError("sink: none given");
  QT_RETURN_IF_ERROR(CheckHead(request.kind, config));
  if (request.input.empty()) return absl::InvalidArgumentError("input: no tokens");
  QT_RETURN_IF_ERROR(CheckIds("input", request.input, config.vocab));
  if (request.adapter != nullptr &&
      (capacity.adapters == nullptr || !capacity.adapters->Accepts(*request.adapter))) {
    return absl::InvalidArgumentError("adapter: it was read for another model");
  }

  auto job = std::make_unique<Job>();
  job->request = std::move(request);
  job->streams = job->request.stream;
  job->encodes = config.has_encoder() || job->kind() != RequestKind::kGenerate;
  QT_RETURN_IF_ERROR(Plan(config, tokenizer, capacity, job.get()));

  const int64_t length = static_cast<int64_t>(job->request.input.size());
  job->result.input_tokens = length;
  job->queue_tokens = length;
  for (const auto& target : job->request.targets) job->queue_tokens += target.size();
  job->needs.priority = job->request.priority;
  job->needs.encode_tokens = job->scoring() != nullptr ? job->scoring()->max_part_tokens()
                             : job->encodes            ? length
                                                       : 0;
  if (DecodeTask* task = job->task()) {
    const int64_t source_pages =
        job->encodes ? (length + capacity.page_size - 1) / capacity.page_size : 0;
    job->needs.pages = source_pages + task->pages_needed();
    job->needs.sequences = task->sequences();
  }
  QT_RETURN_IF_ERROR(CheckFits(*job, config, capacity));
  return job;
}

}  // namespace quintet
