#include "tools/decoding_flags.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "tools/flag_values.h"

namespace quintet {
namespace {

// What --help shows for one flag.
struct FlagText {
  const char* name;
  const char* description;
  const char* unit;
  // The default that --help shows. "model" means that the default comes from the model's
  // generation_config.json.
  const char* shown_default;
};

// Maps the type T of a field of DecodingRequest to the type of the corresponding proto field. Flags
// are parsed as the proto type, so that they have the proto's range and precision.
template <typename T>
struct InProto {
  using type = T;
};
template <>
struct InProto<int64_t> {
  using type = uint32_t;
};
template <>
struct InProto<double> {
  using type = float;
};

class Adder {
 public:
  Adder(CLI::App* command, const char* group) : command_(command), group_(group) {}

  template <typename T>
  CLI::Option* Value(const FlagText& text, std::optional<T>* field) {
    using Given = typename InProto<T>::type;
    return Finish(command_->add_option_function<Given>(
                      text.name, [field](const Given& value) { *field = value; }, text.description),
                  text)
        ->check(NumberOf<Given>());
  }
  template <typename T>
  void List(const FlagText& text, std::vector<T>* field) {
    Finish(command_->add_option(text.name, *field, text.description)->allow_extra_args(false),
           text);
  }
  template <typename T>
  void Commas(const FlagText& text, std::vector<T>* field) {
    Finish(command_->add_option(text.name, *field, text.description)
               ->allow_extra_args(false)
               ->delimiter(',')
               ->check(NumberOf<T>()),
           text);
  }
  CLI::Option* String(const FlagText& text, std::string* field) {
    return Finish(command_->add_option(text.name, *field, text.description), text);
  }
  void Switch(const char* name, const char* description, bool* field) {
    command_->add_flag(name, *field, description)->group(group_);
  }

 private:
  CLI::Option* Finish(CLI::Option* option, const FlagText& text) {
    return option->type_name(text.unit)->default_str(text.shown_default)->group(group_);
  }

  CLI::App* command_;
  const char* group_;
};

void AddSearchFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder search(command, "Search");
  search.Value({"--num-beams", "Number of beams; 1 = greedy search or sampling. Range [1, 32].",
                "BEAMS", "1"},
               &r.num_beams);
  search.Value(
      {"--num-return-sequences",
       "Sequences returned per input: at most --num-beams, or 16 with sampling.", "SEQUENCES", "1"},
      &r.num_return_sequences);
  search.Value({"--length-penalty",
                "Exponent of the length by which a beam's score is divided. Range [-10, 10].",
                "EXPONENT", "1"},
               &r.length_penalty);
  search
      .String(
          {"--early-stopping",
           "When beam search stops: heuristic, first or never (Hugging Face: false, true, never).",
           "RULE", "heuristic"},
          &flags->early_stopping)
      ->check(CLI::IsMember({"heuristic", "first", "never"}));
  search.Value({"--patience",
                "Finished beams to collect, as a multiple of --num-beams. Other than 1 needs "
                "--early-stopping first. Range [0.1, 4].",
                "FACTOR", "1"},
               &r.patience);
}

void AddLengthFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder length(command, "Stopping");
  length.Value(
      {"--max-new-tokens", "Maximum number of new tokens. Range [1, 4096].", "TOKENS", "256"},
      &r.max_new_tokens);
  length.Value(
      {"--min-new-tokens",
       "Minimum number of new tokens before a sequence may end. Range [0, --max-new-tokens].",
       "TOKENS", "0"},
      &r.min_new_tokens);
  length.Commas(
      {"--eos-token-ids", "Token ids that end a sequence; at most 16.", "ID,...", "model"},
      &r.eos_token_ids);
  length.Value({"--pad-token-id", "Token id used for padding.", "ID", "model"}, &r.pad_token_id);
  length.List(
      {"--stop", "Text that ends a sequence, 1 to 256 bytes. Repeat the flag for up to 16 texts.",
       "TEXT", ""},
      &r.stop);
  length.Switch("--include-stop", "Keep the stop text in the output.", &flags->include_stop);
  length.Switch("--ignore-eos", "Continue past end-of-sequence tokens (for benchmarks).",
                &flags->ignore_eos);
}

void AddPrefixFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder rules(command, "Decoder prompt");
  rules.Value({"--decoder-start-token-id", "Token id that the decoder starts with. Not for GPT-2.",
               "ID", "model"},
              &r.decoder_start_token_id);
  rules.String(
      {"--decoder-prefix", "Text that the decoder output starts with. Not for GPT-2.", "TEXT", ""},
      &flags->prefix_text);
  rules.Commas({"--decoder-prefix-ids", "Like --decoder-prefix, as token ids.", "ID,...", ""},
               &flags->prefix_ids);
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
  sampling.Switch(
      "--do-sample",
      "Sample instead of taking the most likely token; with --num-beams > 1, beam sampling.",
      &flags->do_sample);
  sampling.Value(
      {"--temperature",
       "Sampling temperature: the logits are divided by it; 0 = no sampling. Range [0.01, 100].",
       "FACTOR", "1"},
      &r.temperature);
  sampling.Value({"--top-k", "Sample from the K most likely tokens; 0 = no limit.", "K", "50"},
                 &r.top_k);
  sampling.Value(
      {"--top-p",
       "Nucleus sampling: keep the most likely tokens up to total probability P. Range (0, 1].",
       "P", "1"},
      &r.top_p);
  sampling.Value({"--typical-p",
                  "Locally typical sampling: keep the most typical tokens up to total probability "
                  "P. Range (0, 1].",
                  "P", "1"},
                 &r.typical_p);
  sampling.Value(
      {"--min-p", "Drop tokens less likely than P times the most likely token. Range [0, 1).", "P",
       "0"},
      &r.min_p);
}

void AddLogitsProcessorFlags(CLI::App* command, DecodingFlags* flags) {
  DecodingRequest& r = flags->request;
  Adder rules(command, "Logits processors");
  rules.Value({"--repetition-penalty",
               "Penalty for tokens that already occurred; 1 = off. Range (0, 10].", "FACTOR", "1"},
              &r.repetition_penalty);
  rules.Value({"--no-repeat-ngram-size",
               "No n-gram of this size occurs twice; 0 = off. Range [0, 64].", "TOKENS", "0"},
              &r.no_repeat_ngram_size);
  rules.Commas(
      {"--suppress-tokens", "Token ids that are never generated; at most 1024.", "ID,...", ""},
      &r.suppress_tokens);
  rules.Commas(
      {"--begin-suppress-tokens",
       "Token ids that are not generated as the first new token; at most 1024.", "ID,...", ""},
      &r.begin_suppress_tokens);
  rules.String({"--bad-words-ids",
                "Token id sequences that are never generated: ids separated by commas, sequences "
                "by semicolons. At most 256 sequences of 32 ids.",
                "ID,...;...", ""},
               &flags->bad_words);
  rules.Value({"--forced-bos-token-id", "Token id forced as the first new token.", "ID", "model"},
              &r.forced_bos_token_id);
  rules.Commas({"--forced-eos-token-ids",
                "Token ids forced as the last token when --max-new-tokens is reached; at most 16.",
                "ID,...", "model"},
               &r.forced_eos_token_ids);
}

void AddDecodingFlags(CLI::App* command, DecodingFlags* flags) {
  AddSearchFlags(command, flags);
  AddSamplingFlags(command, flags);
  DecodingRequest& r = flags->request;
  Adder(command, "Sampling")
      .Value({"--seed", "Random seed. The tokens of a line depend only on the seed and that line.",
              "INTEGER", "random"},
             &r.seed);
  AddLengthFlags(command, flags);
  AddLogitsProcessorFlags(command, flags);
  AddPrefixFlags(command, flags);
  Adder results(command, "Results");
  results.Switch("--logprobs", "Return the log-probability of each token (--output json).",
                 &flags->logprobs);
  results.Value(
      {"--top-logprobs",
       "Return the K most likely alternatives of each token; needs --logprobs. Range [0, 20].", "K",
       "0"},
      &r.top_logprobs);
  results.Switch("--return-scores",
                 "Return the score of each sequence (--output json; beam search only).",
                 &flags->return_scores);
  results.Switch("--echo", "Prepend the prompt or the decoder prefix to the output.", &flags->echo);
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
    } else {
      request.early_stopping = EarlyStopping::kNever;
    }
  }
  if (!flags.bad_words.empty()) {
    QT_ASSIGN_OR_RETURN(request.bad_words_ids, ParseIdLists(flags.bad_words));
  }
  request.decoder_prefix = flags.prefix_ids;
  if (!flags.prefix_text.empty()) {
    if (!flags.prefix_ids.empty()) {
      return absl::InvalidArgumentError(
          "--decoder-prefix, --decoder-prefix-ids: expected at most one of them, got both");
    }
    if (tokenizer == nullptr) {
      return absl::InvalidArgumentError(
          "--decoder-prefix: the model has no tokenizer; use --decoder-prefix-ids");
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
