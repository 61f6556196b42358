// Tests of the quintet command line as users see it: exit codes, suggestions for misspelt names,
// and where flag values come from (arguments, environment, config file).
#include "tools/command_line.h"

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "kernels/runtime/cpu_features.h"
#include "tests/catch.h"
#include "tests/tools/run_binary.h"
#include "tools/flag_values.h"
#include "tools/version.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

std::string WriteConfig(const std::string& text) {
  const std::string path = std::string("/tmp/quintet_config_") + std::to_string(getpid()) + ".toml";
  std::ofstream(path) << text;
  return path;
}

TEST_CASE("usage errors exit with 2 and a message") {
  struct Case {
    std::vector<std::string> args;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{}, "Subcommands"},
      {{"generat"}, "Did you mean generate?"},
      {{"frobnicate"}, "unknown subcommand frobnicate"},
      {{"generate", "--num-beans", "4"}, "Did you mean --num-beams?"},
      {{"generate", "--num-beans=4"}, "Did you mean --num-beams?"},
      {{"generate", "--no-such-flag-at-all"}, "unknown flag --no-such-flag-at-all"},
      {{"generate", "a", "extra"}, "unexpected argument extra"},
      {{"bench", "a"}, "unexpected argument a. The model is given as --model MODEL"},
      {{"bench", "a=b"}, "unexpected argument a=b."},
      {{"generate", "--early-stopping", "soon"}, "--early-stopping: soon not in"},
      {{"generate"}, "--model is required"},
      {{"generate", "--num-beams", "many"},
       "--num-beams: expected a whole number from 0 to 4294967295, got many"},
      {{"generate", "--num-beams", "-1"}, "--num-beams: expected a whole number"},
      {{"generate", "--num-beams", "1e3"}, "--num-beams: expected a whole number"},
      {{"generate", "--eos-token-ids", "1,x"}, "--eos-token-ids: expected a whole number"},
      {{"generate", "--length-penalty", "x"}, "--length-penalty: expected a number, got x"},
      {{"generate", "--do-sample=maybe"}, "--do-sample: expected true or false, got maybe"},
      {{"generate", "--threads", "1.5"},
       "--threads: expected a whole number from 0 to 1024, got 1.5"},
      {{"generate", "--dtype", "f64"}, "--dtype"},
      {{"generate", "--model"}, "--model: expected a value (MODEL), got none"},
      {{"generate", "--model", "a", "--model", "b"}, "--model: expected once, got it 2 times"},
      {{"generate", "--config", "/no/such/file"}, "--config"},
      {{"generate", "--config", "/tmp"}, "--config: cannot read /tmp"},
      {{"generate", "--seed", "-1"}, "--seed: expected a whole number"},
      {{"generate", "--seed", "18446744073709551616"}, "--seed: expected a whole number"},
      {{"bench", "--seed", "-1"}, "--seed: expected a whole number"},
      {{"serve", "--drain-delay", "nan"}, "expected a number from 0 to 1000000, got nan"},
      {{"serve", "--max-queue", "-1"}, "expected a whole number from 1 to 1048576, got -1"},
      {{"serve", "--stall-timeout", "0"}, "--stall-timeout"},
      {{"bench", "serve", "--request-rate", "nan"}, "--request-rate"},
      {{"completion", "tcsh"}, "tcsh"},
      {{"bench", "serv"}, "Did you mean serve?"},
      {{"bench", "serve", "--request-rat", "1"}, "Did you mean --request-rate?"},
      {{"bench", "serve"}, "--request-rate or --concurrency"},
      {{"bench", "serve", "--concurrency", "1"}, "--requests or --duration"},
      {{"bench", "serve", "--concurrency", "1", "--requests", "1", "--goodput", "ttft"},
       "--goodput"},
      {{"serve", "--model", G2pModel(), "--listen", "127.0.0.1:0", "--tls-cert", "/no/such/file",
        "--tls-key", "/no/such/file"},
       "--tls-cert: cannot read /no/such/file: No such file"},
      {{"serve", "--model", G2pModel(), "--listen", "127.0.0.1:0", "--http-listen", "x"},
       "--http-listen: cannot listen on x: expected HOST:PORT"},
      {{"serve", "--model", G2pModel(), "--listen", "127.0.0.1:0", "--http-listen", "9464"},
       "--http-listen: cannot listen on 9464: expected HOST:PORT"},
      {{"serve", "--model", G2pModel(), "--listen", "unix:/tmp/quintet.sock"},
       "--listen: cannot listen on unix:/tmp/quintet.sock: expected HOST:PORT"},
      {{"bench", "serve", "--concurrency", "1", "--requests", "1", "--prompts", "/no/such/file"},
       "--prompts: cannot read /no/such/file: No such file"},
      {{"bench", "engine"}, "bench engine: --model is required"},
  };
  for (const Case& c : cases) {
    const Outcome outcome = RunBinary({c.args, "", {}});
    CHECK(outcome.exit_code == kExitUsage);
    CHECK_THAT(outcome.err, ContainsSubstring(c.message));
    CHECK(outcome.out.empty());
  }
}

// Runs `quintet COMMAND` in a shell; `command` may have redirections. Returns the exit code.
int ExitUnder(const std::string& command) {
  const std::string line = std::string("timeout 60 ") + QUINTET_BINARY + " " + command;
  const int status = std::system(line.c_str());
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("output that cannot be written is an error") {
  const std::string model = " --model " + G2pModel();
  for (const char* command :
       {"--help", "--version", "completion bash", "generate --print-config"}) {
    INFO(command);
    CHECK(ExitUnder(std::string(command) + " > /dev/full 2> /dev/null") == kExitFailed);
    CHECK(ExitUnder(std::string(command) + " >&- 2> /dev/null") == kExitFailed);
  }
  CHECK(ExitUnder("inspect" + model + " > /dev/full 2> /dev/null") == kExitFailed);
  CHECK(ExitUnder("generate" + model + " --no-such-flag > /dev/full 2> /dev/null") == kExitUsage);
}

TEST_CASE("closed standard streams are not reused for other files") {
  const std::string generate = "generate --model " + G2pModel();
  // Standard input is closed (<&-), so the command must fail. The next file that it opens would get
  // descriptor 0; the command must not read that file as its input.
  CHECK(ExitUnder(generate + " <&- > /dev/null 2> /dev/null") == kExitFailed);
  CHECK(ExitUnder(generate + " <&- >&- 2>&-") == kExitFailed);
}

TEST_CASE("help names every flag with its unit, default and variable, and an example") {
  for (std::vector<std::string> command : std::vector<std::vector<std::string>>{{"generate"},
                                                                                {"encode"},
                                                                                {"score"},
                                                                                {"classify"},
                                                                                {"serve"},
                                                                                {"health"},
                                                                                {"bench"},
                                                                                {"bench", "serve"},
                                                                                {"bench", "engine"},
                                                                                {"convert"},
                                                                                {"inspect"},
                                                                                {"completion"},
                                                                                {"man"}}) {
    INFO(command.back());
    command.push_back("--help");
    const Outcome outcome = RunBinary({command, "", {}});
    CHECK(outcome.exit_code == kExitDone);
    CHECK_THAT(outcome.out, ContainsSubstring("Example:\n  "));
    CHECK_THAT(outcome.out, ContainsSubstring("$QUINTET_LOG_FORMAT"));
  }
  const std::string help = RunBinary({{"generate", "--help"}, "", {}}).out;
  CHECK_THAT(help, ContainsSubstring("--max-new-tokens TOKENS"));
  const std::string serve = RunBinary({{"serve", "--help"}, "", {}}).out;
  CHECK_THAT(serve, ContainsSubstring("--limit-new-tokens TOKENS "));  // not the validator's text
  CHECK_THAT(serve,
             ContainsSubstring("--max-running SEQUENCES ") && !ContainsSubstring("--max-num-seqs"));
  CHECK_THAT(RunBinary({{"bench", "--help"}, "", {}}).out,
             ContainsSubstring("[1,8] ($QUINTET_BATCH)"));
  CHECK_THAT(help, ContainsSubstring("[256] ($QUINTET_MAX_NEW_TOKENS)"));
}

TEST_CASE("--version names commit, CUDA and the instruction sets built and used") {
  const std::vector<std::string> lines = Lines(RunBinary({{"--version"}, "", {}}).out);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == std::string("quintet ") + Version() + " (" + Commit() + ")");
#ifdef QUINTET_CUDA
  CHECK_THAT(lines[1], ContainsSubstring(" for sm_"));
#else
  CHECK(lines[1] == "CUDA: none");
#endif
  CHECK(lines[2] == "CPU instruction sets: " + CompiledIsaNames());
  CHECK(lines[3] == "Used on this CPU: " + UsedIsaNames());
#if defined(__x86_64__)
  CHECK_THAT(lines[2],
             ContainsSubstring("AMX") && ContainsSubstring("AVX3") && ContainsSubstring("SSE4"));
  const Outcome capped = RunBinary({{"--version"}, "", {{"QUINTET_CPU_ISA", "baseline"}}});
  REQUIRE(Lines(capped.out).size() == 4);
  CHECK_THAT(Lines(capped.out)[3],
             StartsWith("Used on this CPU: SSE") && !ContainsSubstring("AVX"));
#endif
}

TEST_CASE("every decoding field is a flag") {
  const std::string help = RunBinary({{"generate", "--help"}, "", {}}).out;
  for (const char* flag : {"max-new-tokens",
                           "min-new-tokens",
                           "num-beams",
                           "num-return-sequences",
                           "length-penalty",
                           "early-stopping",
                           "patience",
                           "do-sample",
                           "seed",
                           "temperature",
                           "top-k",
                           "top-p",
                           "typical-p",
                           "min-p",
                           "repetition-penalty",
                           "no-repeat-ngram-size",
                           "suppress-tokens",
                           "begin-suppress-tokens",
                           "bad-words-ids",
                           "forced-bos-token-id",
                           "forced-eos-token-ids",
                           "eos-token-ids",
                           "decoder-start-token-id",
                           "pad-token-id",
                           "decoder-prefix",
                           "stop",
                           "include-stop",
                           "ignore-eos",
                           "logprobs",
                           "top-logprobs",
                           "return-scores",
                           "echo",
                           "skip-special-tokens",
                           "add-special-tokens",
                           "truncate"}) {
    CHECK_THAT(help, ContainsSubstring(std::string("--") + flag + " "));
  }
}

// Returns the value of one flag as `quintet generate --print-config` prints it.
std::string FlagValue(const std::string& flag, std::vector<std::string> args,
                      std::map<std::string, std::string> environment) {
  args.insert(args.begin(), "generate");
  args.push_back("--print-config");
  const Outcome outcome = RunBinary({args, "", std::move(environment)});
  REQUIRE(outcome.exit_code == kExitDone);
  for (const std::string& line : Lines(outcome.out)) {
    for (const std::string& start : {flag + " = ", "# " + flag + " = "}) {
      if (line.rfind(start, 0) == 0) return line.substr(start.size());
    }
  }
  return "";
}

TEST_CASE("flags override variables, which override the file, which overrides defaults") {
  const std::string file = WriteConfig(
      "num-beams = 7\nmax_new_tokens = 9\ndo-sample = true\n[encode]\nnormalize = true\n");
  const std::map<std::string, std::string> variable = {{"QUINTET_NUM_BEAMS", "5"}};
  CHECK(FlagValue("num-beams", {}, {}) == "\"1\"");
  CHECK(FlagValue("num-beams", {"--config", file}, {}) == "\"7\"");
  CHECK(FlagValue("num-beams", {"--config", file}, variable) == "\"5\"");
  CHECK(FlagValue("num-beams", {"--config", file, "--num-beams", "3"}, variable) == "\"3\"");
  CHECK(FlagValue("max-new-tokens", {"--config", file}, {}) == "\"9\"");
  CHECK(FlagValue("do-sample", {"--config", file}, {}) == "true");
  CHECK(FlagValue("do-sample", {}, {{"QUINTET_DO_SAMPLE", "true"}}) == "true");
  CHECK(FlagValue("do-sample", {"--config", file}, {{"QUINTET_DO_SAMPLE", "false"}}) == "false");
  CHECK(FlagValue("num-beams", {}, {{"QUINTET_CONFIG", file}}) == "\"7\"");
  CHECK(FlagValue("suppress-tokens", {}, {{"QUINTET_SUPPRESS_TOKENS", "4,5"}}) == "[\"4\", \"5\"]");
}

TEST_CASE("a subcommand of a subcommand has its own section in the file") {
  const std::string file =
      WriteConfig("[bench]\nseed = 3\n[bench.serve]\nseed = 5\n[serve]\nthreads = 7\n");
  CHECK_THAT(RunBinary({{"bench", "--print-config", "--config", file}, "", {}}).out,
             ContainsSubstring("[bench]\n") && ContainsSubstring("\nseed = \"3\"\n"));
  CHECK_THAT(RunBinary({{"bench", "serve", "--print-config", "--config", file}, "", {}}).out,
             ContainsSubstring("[bench.serve]\n") && ContainsSubstring("\nseed = \"5\"\n"));
  CHECK_THAT(RunBinary({{"completion", "bash"}, "", {}}).out,
             ContainsSubstring("\"bench serve \"*)"));
}

TEST_CASE("bad values of variables and files are usage errors that name their source") {
  Outcome outcome = RunBinary({{"generate"}, "", {{"QUINTET_NUM_BEAMS", "x"}}});
  CHECK(outcome.exit_code == kExitUsage);
  CHECK_THAT(outcome.err, ContainsSubstring("QUINTET_NUM_BEAMS"));
  outcome = RunBinary({{"generate", "--model", G2pModel()}, "", {{"QUINTET_CPU_ISA", "mmx"}}});
  CHECK(outcome.exit_code == kExitUsage);
  CHECK_THAT(outcome.err, ContainsSubstring("QUINTET_CPU_ISA"));
  const std::pair<const char*, const char*> files[] = {
      {"num-beans = 4\n", ":1: num-beans: unknown key. Did you mean \"num-beams\"?"},
      {"[generat]\nnum-beams = 4\n", ":2: generat.num-beams: no such subcommand"},
      {"# a comment\n\nnum-beams = \"x\"\n", ":3: num-beams: "},
      {"[encode]\nhelp = 1\n[generate]\n  help= true\n", ":4: generate.help: unknown key"},
      {"[generate.deep]\nnum-beams = 1\n", ":2: generate.deep.num-beams: no such subcommand"},
  };
  for (const auto& [text, error] : files) {
    const std::string file = WriteConfig(text);
    outcome = RunBinary({{"generate", "--config", file}, "", {}});
    INFO(text);
    CHECK(outcome.exit_code == kExitUsage);
    CHECK_THAT(outcome.err, ContainsSubstring(file + error));
  }
}

TEST_CASE("the output of --print-config is a valid configuration") {
  const std::vector<std::string> args = {"generate", "--print-config",    "--num-beams",
                                         "4",        "--suppress-tokens", "1,2",
                                         "--stop",   "a \"b\" \\n",       "--echo"};
  const Outcome first = RunBinary({args, "", {}});
  const Outcome second =
      RunBinary({{"generate", "--print-config", "--config", WriteConfig(first.out)}, "", {}});
  CHECK(second.out == first.out);
}

TEST_CASE("rejected models exit with 3") {
  for (const char* model : {"/no/such/model", "/tmp"}) {
    const Outcome outcome = RunBinary({{"generate", "--model", model}, "a\n", {}});
    CHECK(outcome.exit_code == kExitModel);
    CHECK(outcome.out.empty());
  }
  const Outcome two = RunBinary({{"serve", "a=" + G2pModel(), "b=/no/such/model"}, "", {}});
  CHECK(two.exit_code == kExitModel);
  CHECK_THAT(two.err, ContainsSubstring("/no/such/model"));
  // classify rejects the shipped model, because it has no classification head.
  CHECK(RunBinary({{"classify", "--model", G2pModel()}, "a\n", {}}).exit_code == kExitModel);
}

TEST_CASE("misspelt names get the suggestion with the smallest edit distance") {
  CHECK(EditDistance("", "abc") == 3);
  CHECK(EditDistance("kitten", "sitting") == 3);
  CHECK(EditDistance("same", "same") == 0);
  CHECK(EditDistance("--nubm", "--numb") == 1);
  CHECK(Nearest("MODEI", {"MODE", "MODEL"}) == "MODEL");
  CHECK(Nearest("FOO", {"TO", "MODEL"}).empty());
  CHECK(Nearest("--num-beans", {"--num-beams", "--seed"}) == "--num-beams");
  CHECK(Nearest("--xxxxxxxx", {"--num-beams", "--seed"}).empty());
  CHECK(Nearest("ab", {"cd", "xy"}).empty());
}

}  // namespace
}  // namespace quintet
