#include "tools/decoding_flags.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/flag_values.h"

namespace quintet {
namespace {

// One flag's texts.
struct Text {
  const char* name;
  const char* description;
  const char* unit;
  const char* shown_default;  // "model": generation_config.json's, then that of the documentation
};

class Adder {
 public:
  Adder(CLI::App* command, const char* group) : command_(command), group_(group) {}

  template <typename T>
  CLI::Option* Value(const Text& text, std::optional<T>* field) {
    return Finish(command_->add_option_function<T>(
                      text.name, [field](const T& value) { *field = value; }, text.description),
                  text)
        ->check(NumberOf<T>());
  }
  template <typename T>
  void List(const Text& text, std::vector<T>* field) {
    Finish(command_->add_option(text.name, *field, text.description)->allow_extra_args(false),
           text);
  }
  template <typename T>
  void Commas(const Text& text, std::vector<T>* field) {
    Finish(command_->add_option(text.name, *field, text.description)
               ->allow_extra_args(false)
               ->delimiter(',')
               ->check(NumberOf<T>()),
           text);
  }
  void String(const Text& text, std::string* field) {
    Finish(command_->add_option(text.name, *field, text.description), text);
  }
  void Switch(const char* name, const char* description, bool* field) {
    command_->add_flag(name, *field, description)->group(group_);
  }

 private:
  CLI::Option* Finish(CLI::Option* option, const Text& text) {
    return option->type_name(text.unit)->default_str(text.shown_default)->group(group_);
  }

  CLI::App* command_;
  const char* group_;
};

void AddSearchFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder search(command, "Search");
  search.Value({"--num-beams", "Beams; 1: greedy or sampling.", "BEAMS", "1"}, &r.num_beams);
  search.Value({"--num-return-sequences", "Sequences returned for each input.", "SEQUENCES", "1"},
               &r.num_return_sequences);
  search.Value({"--length-penalty",
                "Exponent of the length that divides a beam's score, -10 to 10.", "EXPONENT", "1"},
               &r.length_penalty);
  search.String(
      {"--early-stopping",
       "When a beam search ends: heuristic, first or never (Hugging Face: false, true, never).",
       "RULE", "heuristic"},
      &flags->early_stopping);
  search.Value(
      {"--patience", "Finished beams awaited, in units of the beams; needs --early-stopping first.",
       "FACTOR", "1"},
      &r.patience);
}

void AddLengthFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder length(command, "Length and end");
  length.Value({"--max-new-tokens", "Most tokens generated.", "TOKENS", "256"}, &r.max_new_tokens);
  length.Value({"--min-new-tokens", "Fewest tokens before the end of sequence.", "TOKENS", "0"},
               &r.min_new_tokens);
  length.Commas({"--eos-token-ids", "Ids that end a sequence.", "ID,...", "model"},
                &r.eos_token_ids);
  length.Value({"--pad-token-id", "Id that fills what is empty.", "ID", "model"}, &r.pad_token_id);
  length.List({"--stop", "Text that ends a sequence; may be given several times.", "TEXT", ""},
              &r.stop);
  length.Switch("--include-stop", "Keep the stop text in the output.", &flags->include_stop);
  length.Switch("--ignore-eos", "Go on to --max-new-tokens whatever is generated (for benchmarks).",
                &flags->ignore_eos);
}

void AddPrefixFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder rules(command, "Rules");
  rules.Value({"--decoder-start-token-id", "Id the decoder starts from.", "ID", "model"},
              &r.decoder_start_token_id);
  rules.String(
      {"--decoder-prefix", "Text the decoder's output starts with (not GPT-2).", "TEXT", ""},
      &flags->prefix_text);
  rules.Commas({"--decoder-prefix-ids", "The same as ids.", "ID,...", ""}, &flags->prefix_ids);
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> ParseIdLists(const std::string& text) {
  std::vector<std::vector<uint32_t>> lists;
  for (absl::string_view list : absl::StrSplit(text, ';')) {
    lists.emplace_back();
    for (absl::string_view number : absl::StrSplit(list, ',')) {
      uint32_t id = 0;
      if (!absl::SimpleAtoi(number, &id)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--bad-words-ids: expected a token id, got \"", number, "\""));
      }
      lists.back().push_back(id);
    }
  }
  return lists;
}

}  // namespace

void AddSamplingFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder sampling(command, "Sampling");
  sampling.Switch("--do-sample",
                  "Sample instead of taking the most likely token; with beams: beam sampling.",
                  &flags->do_sample);
  sampling.Value({"--temperature", "Divisor of the logits, 0.01 to 100.", "FACTOR", "1"},
                 &r.temperature);
  sampling.Value({"--top-k", "Sample among so many best tokens; 0: all.", "TOKENS", "50"},
                 &r.top_k);
  sampling.Value({"--top-p", "Sample within this probability mass.", "PROBABILITY", "1"}, &r.top_p);
  sampling.Value(
      {"--typical-p", "Sample within this mass of locally typical tokens.", "PROBABILITY", "1"},
      &r.typical_p);
  sampling.Value({"--min-p", "Drop tokens below this fraction of the best one's probability.",
                  "FRACTION", "0"},
                 &r.min_p);
}

void AddRuleFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder rules(command, "Rules");
  rules.Value(
      {"--repetition-penalty", "Penalty of tokens already there, above 0 to 10.", "FACTOR", "1"},
      &r.repetition_penalty);
  rules.Value({"--no-repeat-ngram-size", "No sequence of so many tokens occurs twice; 0: off.",
               "TOKENS", "0"},
              &r.no_repeat_ngram_size);
  rules.Commas({"--suppress-tokens", "Ids never generated.", "ID,...", ""}, &r.suppress_tokens);
  rules.Commas({"--begin-suppress-tokens", "Ids never generated first.", "ID,...", ""},
               &r.begin_suppress_tokens);
  rules.String(
      {"--bad-words-ids", "Id sequences never generated: ids by commas, sequences by semicolons.",
       "ID,...;...", ""},
      &flags->bad_words);
  rules.Value({"--forced-bos-token-id", "Id forced as the first token.", "ID", "model"},
              &r.forced_bos_token_id);
  rules.Commas({"--forced-eos-token-ids", "Ids forced as the last token.", "ID,...", "model"},
               &r.forced_eos_token_ids);
}

void AddDecodingFlags(CLI::App* command, DecodingFlags* flags) {
  AddSearchFlags(command, flags);
  AddSamplingFlags(command, flags);
  DecodingRequest& r = flags->request;
  Adder(command, "Sampling")
      .Value(
          {"--seed", "Seed; a line's tokens depend on it and the line alone.", "INTEGER", "random"},
          &r.seed);
  AddLengthFlags(command, flags);
  AddRuleFlags(command, flags);
  AddPrefixFlags(command, flags);
  Adder results(command, "Results");
  results.Switch("--logprobs", "Log-probability of each token (--output json).", &flags->logprobs);
  results.Value(
      {"--top-logprobs", "Most likely alternatives of each token (--output json), up to 20.",
       "TOKENS", "0"},
      &r.top_logprobs);
  results.Switch("--return-scores", "Score of each sequence (--output json; beam search).",
                 &flags->return_scores);
  results.Switch("--echo", "Put the prompt or prefix before the output.", &flags->echo);
}

absl::StatusOr<DecodingRequest> BuildDecodingRequest(const DecodingFlags& flags,
                                                     const Tokenizer* tokenizer) {
  DecodingRequest request = flags.request;
  const auto set = [](bool on, std::optional<bool>* field) {
    if (on) *field = true;
  };
  set(flags.do_sample, &request.do_sample);
  set(flags.include_stop, &request.include_stop);
  set(flags.ignore_eos, &request.ignore_eos);
  set(flags.logprobs, &request.logprobs);
  set(flags.return_scores, &request.return_scores);
  set(flags.echo, &request.echo);
  if (!flags.early_stopping.empty()) {
    if (flags.early_stopping == "heuristic") {
      request.early_stopping = EarlyStopping::kHeuristic;
    } else if (flags.early_stopping == "first") {
      request.early_stopping = EarlyStopping::kFirst;
    } else if (flags.early_stopping == "never") {
      request.early_stopping = EarlyStopping::kNever;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "--early-stopping: expected heuristic, first or never, got ", flags.early_stopping));
    }
  }
  if (!flags.bad_words.empty()) {
    absl::StatusOr<std::vector<std::vector<uint32_t>>> lists = ParseIdLists(flags.bad_words);
    if (!lists.ok()) return lists.status();
    request.bad_words_ids = *std::move(lists);
  }
  request.decoder_prefix = flags.prefix_ids;
  if (!flags.prefix_text.empty()) {
    if (!flags.prefix_ids.empty()) {
      return absl::InvalidArgumentError(
          "--decoder-prefix and --decoder-prefix-ids exclude each other");
    }
    if (tokenizer == nullptr) {
      return absl::InvalidArgumentError("--decoder-prefix: the model has no tokenizer");
    }
    auto prefix = tokenizer->Encode(flags.prefix_text, /*add_special_tokens=*/false);
    if (!prefix.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--decoder-prefix: ", prefix.status().message()));
    }
    request.decoder_prefix = *std::move(prefix);
  }
  return request;
}

}  // namespace quintet
