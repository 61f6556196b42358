#include "engine/options.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

constexpr int64_t kMaxInt = 2147483647;
constexpr size_t kMaxEos = 16, kMaxSuppressed = 1024, kMaxBadWords = 256, kMaxBadWordTokens = 32;
constexpr size_t kMaxStops = 16, kMaxStopBytes = 256;
constexpr int64_t kMaxBeams = 32, kMaxSamples = 16;

// Text that error messages put after the name of a field whose value comes from a file of the
// model, not from the request.
constexpr char kOfFile[] = " of generation_config.json (of config.json where there is none)";

constexpr OptionRange kPatienceRange{0.1f, 4.0}, kAlternativesRange{0, 20};

absl::Status OutOfRange(absl::string_view field, double value, const OptionRange& range) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not in ", range.Text()));
}

// Runs many checks and keeps the first error.
class Checker {
 public:
  explicit Checker(int64_t vocab) : vocab_(vocab) {}

  void Fail(absl::string_view field, absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  }
  void InRange(absl::string_view field, double value, const OptionRange& range) {
    if (status_.ok() && !range.Holds(value)) status_ = OutOfRange(field, value, range);
  }
  void Count(absl::string_view field, size_t count, size_t limit) {
    if (count > limit) Fail(field, absl::StrCat(count, " entries, the limit is ", limit));
  }
  void Id(absl::string_view field, int64_t id) {
    if (id < 0 || id >= vocab_) {
      Fail(field, absl::StrCat("token id ", id, " is not in [0, ", vocab_, ")"));
    }
  }
  template <typename List>
  void Ids(absl::string_view field, const List& ids, size_t limit) {
    Count(field, ids.size(), limit);
    for (int64_t id : ids) Id(field, id);
  }
  template <typename Words>
  void BadWords(const Words& words) {
    constexpr char kField[] = "bad_words_ids";
    Count(kField, words.size(), kMaxBadWords);
    for (const auto& word : words) {
      if (word.empty()) Fail(kField, "an empty list");
      Ids(kField, word, kMaxBadWordTokens);
    }
  }
  void Stops(const std::vector<std::string>& stops) {
    Count("stop", stops.size(), kMaxStops);
    for (const std::string& stop : stops) {
      if (stop.empty() || stop.size() > kMaxStopBytes) {
        Fail("stop", absl::StrCat("a string of ", stop.size(), " bytes is not in [1, ",
                                  kMaxStopBytes, "]"));
      }
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  int64_t vocab_;
  absl::Status status_;
};

// Determines the options of one request field by field, from the request, the files or defaults.
class Resolver {
 public:
  // `greedy`: the temperature of the client's request is 0, and `request` is the result of
  // WithoutSampling.
  Resolver(const DecodingRequest& request, bool greedy, const GenerationDefaults& defaults,
           const ModelConfig& config, const DecodingLimits& limits,
           const std::vector<int32_t>& input)
      : request_(request),
        greedy_(greedy),
        defaults_(defaults),
        config_(config),
        limits_(limits),
        input_(input),
        check_(config.vocab) {}

  absl::StatusOr<DecodingOptions> Run() {
    Prompt();
    Eos();
    Search();
    Lengths();
    Sampling();
    Processors();
    Output();
    CannotAct();
    QT_RETURN_IF_ERROR(check_.status());
    return std::move(options_);
  }

 private:
  // Sets `value` to `given`, the number in the request, or else to `file`, the default in
  // generation_config.json; if neither is set, `value` keeps its built-in default. An error about a
  // number that comes from the file mentions the file.
  template <typename T, typename Value>
  void Settle(const char* field, const std::optional<T>& given, const std::optional<T>& file,
              const OptionRange& range, Value* value) {
    if (!given.has_value() && !file.has_value()) return;
    const double number = static_cast<double>(given.has_value() ? *given : *file);
    check_.InRange(given.has_value() ? field : absl::StrCat(field, kOfFile), number, range);
    if (range.Holds(number)) *value = static_cast<Value>(number);
  }
  bool Has(Needs needs) const {
    if (needs == Needs::kSampling) return options_.do_sample;
    return needs == Needs::kNothing || options_.num_beams > 1;
  }
  // Resolves the numeric options that take effect in the mode `wanted`: only in sampling, only in
  // beam search, or always. A default from generation_config.json is used and checked only if it
  // has an effect: many of these files do not enable sampling and yet set the temperature to 0.0.
  void Numbers(Needs wanted) {
    VisitNumbers(&options_, [&](const char* name, auto field, auto* value, const OptionRange& range,
                                Needs needs) {
      if (needs != wanted) return;
      const auto file = Has(needs) ? defaults_.*field : std::nullopt;
      Settle(name, request_.*field, file, range, value);
    });
  }
  // If the mode `wanted` (sampling or beam search) is off, reports an error for each numeric option
  // (such as temperature) that the request sets and that has an effect only in that mode. `what`:
  // the option that would turn the mode on, for error messages.
  void NumbersNeed(Needs wanted, const char* what) {
    VisitNumbers(&options_,
                 [&](const char* name, auto field, auto*, const OptionRange&, Needs needs) {
                   if (needs == wanted) NeedsOther(name, request_.*field, Has(needs), what);
                 });
  }
  template <typename T>
  void NeedsOther(const char* field, const std::optional<T>& given, bool present,
                  const char* what) {
    if (given.has_value() && !present)
      check_.Fail(field, absl::StrCat("has no effect without ", what));
  }
  static std::vector<int32_t> Signed(const std::vector<uint32_t>& ids) {
    return std::vector<int32_t>(ids.begin(), ids.end());
  }

  void Prompt();
  void Eos();
  void Search();
  void Lengths();
  void MinLength();
  void Sampling();
  void Processors();
  void Output();
  void CannotAct();

  const DecodingRequest& request_;
  const bool greedy_;
  const GenerationDefaults& defaults_;
  const ModelConfig& config_;
  const DecodingLimits& limits_;
  const std::vector<int32_t>& input_;
  Checker check_;
  DecodingOptions options_;
};

void Resolver::Prompt() {
  if (input_.empty()) check_.Fail("input", "no tokens");
  if (!config_.has_encoder()) {
    options_.prompt = input_;
    if (request_.decoder_start_token_id.has_value()) {
      check_.Fail("decoder_start_token_id", "has no effect without an encoder");
    }
    if (!request_.decoder_prefix.empty()) {
      check_.Fail("decoder_prefix", "has no effect without an encoder: extend the prompt");
    }
    check_.Ids("input", input_, static_cast<size_t>(kMaxInt));
    return;
  }
  if (input_.size() > limits_.max_input_tokens) {
    check_.Fail("input",
                absl::StrCat(input_.size(), " tokens, the limit is ", limits_.max_input_tokens));
  }
  int64_t start = config_.decoder_start_id >= 0 ? config_.decoder_start_id : config_.bos_id;
  if (defaults_.decoder_start_token_id.has_value()) start = *defaults_.decoder_start_token_id;
  if (request_.decoder_start_token_id.has_value()) start = *request_.decoder_start_token_id;
  if (start < 0 && !request_.decoder_start_token_id.has_value()) {
    check_.Fail("decoder_start_token_id", "the model names none, so the request must");
  }
  check_.Id("decoder_start_token_id", start);
  options_.prompt.push_back(static_cast<int32_t>(start));
  // decoder_prefix may have at most max_new_tokens ids: no practical prefix is longer than the
  // longest output.
  check_.Ids("decoder_prefix", request_.decoder_prefix, limits_.max_new_tokens);
  options_.prompt.insert(options_.prompt.end(), request_.decoder_prefix.begin(),
                         request_.decoder_prefix.end());
}

void Resolver::Eos() {
  options_.pad_token_id = config_.pad_id >= 0 ? config_.pad_id : 0;
  if (defaults_.pad_token_id.has_value()) {
    options_.pad_token_id = static_cast<int32_t>(*defaults_.pad_token_id);
  }
  if (request_.pad_token_id.has_value()) {
    check_.Id("pad_token_id", *request_.pad_token_id);
    options_.pad_token_id = static_cast<int32_t>(*request_.pad_token_id);
  }
  check_.Ids("eos_token_ids", request_.eos_token_ids, kMaxEos);
  if (request_.ignore_eos.value_or(false)) {
    if (!request_.eos_token_ids.empty())
      check_.Fail("eos_token_ids", "has no effect with ignore_eos");
    return;
  }
  std::vector<int32_t> ids = config_.eos_ids;
  if (!defaults_.eos_token_ids.empty()) ids = Signed(defaults_.eos_token_ids);
  if (!request_.eos_token_ids.empty()) ids = Signed(request_.eos_token_ids);
  check_.Ids("eos_token_ids of the model's files", ids, kMaxEos);
  for (int32_t id :
       ids) {  // without duplicates: their number sets how many candidates beam search ranks
    auto& eos = options_.eos_token_ids;
    if (std::find(eos.begin(), eos.end(), id) == eos.end()) eos.push_back(id);
  }
}

void Resolver::Search() {
  const double max_beams = std::min<int64_t>(limits_.max_beams, kMaxBeams);
  Settle("num_beams", request_.num_beams, defaults_.num_beams, {1, max_beams}, &options_.num_beams);
  options_.do_sample = request_.do_sample.value_or(defaults_.do_sample.value_or(false));
  const bool beams = options_.num_beams > 1;
  Numbers(Needs::kBeams);
  Settle("patience", request_.patience, {}, kPatienceRange, &options_.patience);
  if (beams && defaults_.early_stopping.has_value()) {
    options_.early_stopping = *defaults_.early_stopping;
  }
  if (request_.early_stopping.has_value()) {
    check_.InRange("early_stopping", static_cast<int>(*request_.early_stopping), {0, 2});
    options_.early_stopping = *request_.early_stopping;
  }
  if (options_.patience != 1.0 && options_.early_stopping != EarlyStopping::kFirst) {
    check_.Fail("patience", "other than 1 needs early_stopping FIRST");
  }
  int64_t most = 1;
  if (beams) {
    most = std::min<int64_t>(options_.num_beams,
                             std::max(1L, std::lround(options_.num_beams * options_.patience)));
  } else if (options_.do_sample) {
    most = std::min<int64_t>(limits_.max_samples, kMaxSamples);
  }
  if (request_.num_return_sequences.has_value()) {
    if (!beams && !options_.do_sample && *request_.num_return_sequences > 1) {
      check_.Fail("num_return_sequences",
                  greedy_ ? "more than 1 needs num_beams or a temperature above 0: 0 is greedy"
                          : "more than 1 needs num_beams or do_sample");
    }
    check_.InRange("num_return_sequences", *request_.num_return_sequences,
                   {1, static_cast<double>(most)});
    options_.num_return_sequences = static_cast<int32_t>(
        std::min<int64_t>(most, std::max<int64_t>(1, *request_.num_return_sequences)));
  } else if (defaults_.num_return_sequences.has_value()) {
    options_.num_return_sequences = static_cast<int32_t>(
        std::min<int64_t>(most, std::max<int64_t>(1, *defaults_.num_return_sequences)));
  }
}

void Resolver::Lengths() {
  const int64_t limit = limits_.max_new_tokens;
  const int64_t prompt = static_cast<int64_t>(options_.prompt.size());
  int64_t room = limit;
  const bool bounded = !config_.has_encoder() && config_.max_positions > 0;
  if (bounded) room = std::min(room, config_.max_positions - prompt);
  if (bounded && room < 1) {
    check_.Fail("input", absl::StrCat(prompt, " tokens leave no room for new ones: the model has ",
                                      config_.max_positions, " positions"));
    return;
  }
  if (request_.max_new_tokens.has_value()) {
    const int64_t given = *request_.max_new_tokens;
    check_.InRange("max_new_tokens", static_cast<double>(given), {1, static_cast<double>(limit)});
    if (bounded && given > room) {
      check_.Fail("max_new_tokens",
                  absl::StrCat("prompt (", prompt, ") + new tokens (", given,
                               ") exceed the model's ", config_.max_positions, " positions"));
    }
    options_.max_new_tokens = static_cast<int32_t>(std::min(given, limit));
  } else {
    int64_t value = options_.max_new_tokens;
    if (defaults_.max_new_tokens.has_value()) {
      value = *defaults_.max_new_tokens;
    } else if (defaults_.max_length.has_value()) {  // includes the decoder's prompt
      value = *defaults_.max_length - prompt;
      if (value < 1) {
        check_.Fail(absl::StrCat("max_length", kOfFile),
                    absl::StrCat(*defaults_.max_length, " tokens, and the decoder's prompt has ",
                                 prompt, ": set max_new_tokens"));
      }
    }
    options_.max_new_tokens = static_cast<int32_t>(std::clamp<int64_t>(value, 1, room));
  }
  MinLength();
}

void Resolver::MinLength() {
  const int64_t prompt = static_cast<int64_t>(options_.prompt.size());
  if (request_.min_new_tokens.has_value()) {
    const int64_t given = *request_.min_new_tokens;
    if (given > options_.max_new_tokens) {
      check_.Fail("min_new_tokens",
                  absl::StrCat(given, " exceeds max_new_tokens, ", options_.max_new_tokens));
    }
    if (given > 0 && options_.eos_token_ids.empty()) {
      check_.Fail("min_new_tokens", "has no effect without an end-of-sequence token");
    }
    options_.min_new_tokens =
        static_cast<int32_t>(std::min<int64_t>(given, options_.max_new_tokens));
    return;
  }
  // If a file sets both min_new_tokens and min_length, Hugging Face uses min_new_tokens.
  const int64_t value =
      defaults_.min_new_tokens.value_or(defaults_.min_length.value_or(0) - prompt);
  options_.min_new_tokens =
      static_cast<int32_t>(std::clamp<int64_t>(value, 0, options_.max_new_tokens));
}

void Resolver::Sampling() {
  Numbers(Needs::kSampling);
  if (request_.seed.has_value()) {
    options_.seed = *request_.seed;
  } else if (options_.do_sample) {  // only if needed: reading random_device is a system call
    std::random_device random;
    options_.seed = uint64_t{random()} << 32 | random();
  }
}

void Resolver::Processors() {
  Numbers(Needs::kNothing);
  const auto lists = [this](const char* field, const std::vector<uint32_t>& given,
                            const std::vector<uint32_t>& file, size_t limit) {
    check_.Ids(field, given, limit);
    if (!given.empty()) return Signed(given);
    check_.Ids(absl::StrCat(field, kOfFile), file, limit);
    return Signed(file);
  };
  options_.suppress_tokens =
      lists("suppress_tokens", request_.suppress_tokens, defaults_.suppress_tokens, kMaxSuppressed);
  options_.begin_suppress_tokens = lists("begin_suppress_tokens", request_.begin_suppress_tokens,
                                         defaults_.begin_suppress_tokens, kMaxSuppressed);
  options_.forced_eos_token_ids = lists("forced_eos_token_ids", request_.forced_eos_token_ids,
                                        defaults_.forced_eos_token_ids, kMaxEos);
  check_.BadWords(request_.bad_words_ids);
  check_.BadWords(defaults_.bad_words_ids);
  const auto& words =
      request_.bad_words_ids.empty() ? defaults_.bad_words_ids : request_.bad_words_ids;
  for (const auto& word : words) options_.bad_words_ids.push_back(Signed(word));
  if (request_.forced_bos_token_id.has_value()) {
    check_.Id("forced_bos_token_id", *request_.forced_bos_token_id);
    options_.forced_bos_token_id = static_cast<int32_t>(*request_.forced_bos_token_id);
    if (options_.prompt.size() > 1) {
      check_.Fail("forced_bos_token_id", "acts on the first decoder token only, and that is given");
    }
  } else if (defaults_.forced_bos_token_id.has_value()) {
    check_.Id(absl::StrCat("forced_bos_token_id", kOfFile), *defaults_.forced_bos_token_id);
    options_.forced_bos_token_id = static_cast<int32_t>(*defaults_.forced_bos_token_id);
  }
}

void Resolver::Output() {
  check_.Stops(request_.stop);
  options_.stop = request_.stop;
  options_.include_stop = request_.include_stop.value_or(false);
  options_.logprobs = request_.logprobs.value_or(false);
  options_.return_scores = request_.return_scores.value_or(false);
  options_.echo = request_.echo.value_or(false);
  Settle("top_logprobs", request_.top_logprobs, {}, kAlternativesRange, &options_.top_logprobs);
  if (options_.include_stop && options_.stop.empty()) {
    check_.Fail("include_stop", "has no effect without stop");
  }
  if (options_.top_logprobs > 0 && !options_.logprobs) {
    check_.Fail("top_logprobs", "has no effect without logprobs");
  }
}

void Resolver::CannotAct() {
  const bool sample = options_.do_sample, beams = options_.num_beams > 1;
  NumbersNeed(Needs::kSampling, "do_sample");
  NeedsOther("seed", request_.seed, sample, "do_sample");
  NumbersNeed(Needs::kBeams, "num_beams > 1");
  NeedsOther("early_stopping", request_.early_stopping, beams, "num_beams > 1");
  NeedsOther("patience", request_.patience, beams, "num_beams > 1");
  if (options_.return_scores && !beams) {
    check_.Fail("return_scores", "has no effect without num_beams > 1");
  }
}

}  // namespace

std::string OptionRange::Text() const {
  return absl::StrCat(low_open ? "(" : "[", low, ", ", high, high_open ? ")" : "]");
}

absl::Status CheckDecoding(const DecodingOptions& options, int64_t vocab) {
  Checker check(vocab);
  const auto integer = [&check](const char* field, int64_t value, int64_t low, int64_t high) {
    check.InRange(field, static_cast<double>(value),
                  {static_cast<double>(low), static_cast<double>(high)});
  };
  integer("max_new_tokens", options.max_new_tokens, 1, 1 << 24);
  integer("min_new_tokens", options.min_new_tokens, 0, options.max_new_tokens);
  integer("num_beams", options.num_beams, 1, kMaxBeams);
  check.InRange("patience", options.patience, kPatienceRange);
  const int64_t most = options.num_beams > 1 ? options.num_beams
                       : options.do_sample   ? kMaxSamples
                                             : 1;
  integer("num_return_sequences", options.num_return_sequences, 1, most);
  check.InRange("top_logprobs", options.top_logprobs, kAlternativesRange);
  VisitNumbers(&options,
               [&check](const char* name, auto, const auto* value, const OptionRange& range,
                        Needs) { check.InRange(name, static_cast<double>(*value), range); });
  check.Ids("suppress_tokens", options.suppress_tokens, kMaxSuppressed);
  check.Ids("begin_suppress_tokens", options.begin_suppress_tokens, kMaxSuppressed);
  check.Ids("forced_eos_token_ids", options.forced_eos_token_ids, kMaxEos);
  check.Ids("eos_token_ids", options.eos_token_ids, kMaxEos);
  check.BadWords(options.bad_words_ids);
  if (options.forced_bos_token_id != -1)
    check.Id("forced_bos_token_id", options.forced_bos_token_id);
  if (options.prompt.empty()) check.Fail("prompt", "no tokens");
  check.Ids("prompt", options.prompt, static_cast<size_t>(kMaxInt));
  check.Stops(options.stop);
  return check.status();
}

// Returns `request` with sampling turned off and without the parameters that only affect sampling.
// Used for a temperature of 0, with which clients of other servers ask for no sampling.
static DecodingRequest WithoutSampling(DecodingRequest request) {
  request.do_sample = false;
  for (auto* field : {&request.temperature, &request.top_p, &request.typical_p, &request.min_p}) {
    field->reset();
  }
  request.top_k.reset();
  request.seed.reset();
  return request;
}

absl::StatusOr<DecodingOptions> ResolveDecoding(const DecodingRequest& request,
                                                const GenerationDefaults& defaults,
                                                const ModelConfig& config,
                                                const DecodingLimits& limits,
                                                const std::vector<int32_t>& input) {
  if (request.temperature == 0.0) {
    return Resolver(WithoutSampling(request), true, defaults, config, limits, input).Run();
  }
  return Resolver(request, false, defaults, config, limits, input).Run();
}

}  // namespace quintet
