// Tests of the commands quintet generate, encode, score and bench on the shipped model.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tests/tools/run_binary.h"
#include "tools/exit_code.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

Outcome OnModel(const std::string& command, std::vector<std::string> flags,
                const std::string& input, std::map<std::string, std::string> environment = {}) {
  flags.insert(flags.begin(), {command, "--model", G2pModel()});
  return RunBinary({flags, input, std::move(environment)});
}

TEST_CASE("words become phonemes, one line each, in order") {
  const Outcome outcome =
      OnModel("generate", {"--num-beams", "4", "--quiet"}, "wagner\noros\r\nacclaimed");
  CHECK(outcome.exit_code == kExitDone);
  CHECK(outcome.out == "W AE1 G N ER0\nAO1 R OW0 Z\nAH0 K L EY1 M D\n");
  CHECK(outcome.err.empty());
}

TEST_CASE("a model that needs more memory than allowed is rejected before loading") {
  const Outcome refused = OnModel("generate", {"--max-memory", "20"}, "oros\n");
  CHECK(refused.exit_code == kExitFailed);
  CHECK(refused.out.empty());
  CHECK_THAT(refused.err, ContainsSubstring("--max-memory allows 20 MiB"));
  CHECK_THAT(refused.err, ContainsSubstring("weights"));
  CHECK(OnModel("generate", {"--max-memory", "200"}, "oros\n").out == "AO1 R OW0 Z\n");
}

TEST_CASE("limits are automatic unless given, and --print-config says what they are") {
  const auto print = [](std::vector<std::string> flags) {
    flags.push_back("--print-config");
    return OnModel("generate", flags, "").out;
  };
  const std::string automatic = print({"--cache-memory", "auto"});
  CHECK_THAT(automatic, ContainsSubstring("\n# max-running = \"auto\"\n"));
  CHECK_THAT(automatic, ContainsSubstring("\ncache-memory = \"auto\"\n"));
  CHECK_THAT(automatic, ContainsSubstring("on cpu: max-running 64 (auto), max-batch-tokens 4096 "
                                          "(auto), cache-memory"));
  const std::string given = print({"--max-running", "7", "--cache-memory", "10"});
  CHECK_THAT(given, ContainsSubstring("\nmax-running = \"7\"\n"));
  CHECK_THAT(given, ContainsSubstring("on cpu: max-running 7, max-batch-tokens 4096 (auto), "));
  CHECK(OnModel("generate", {"--max-running", "auto", "--quiet"}, "oros\n").out == "AO1 R OW0 Z\n");
  for (const char* wrong : {"0", "4097", "-1", "many", "1.5", ""}) {
    const Outcome outcome = OnModel("generate", {"--max-running", wrong}, "oros\n");
    CHECK(outcome.exit_code == kExitUsage);
    CHECK_THAT(outcome.err, ContainsSubstring("expected auto or a whole number from 1 to 4096"));
  }
}

TEST_CASE("unsupported fields of generation_config.json are rejected if they have an effect") {
  ScratchDirectory scratch;
  const std::string model = scratch / "model";
  std::filesystem::copy(G2pModel(), model);
  const auto run = [&](std::vector<std::string> command, const std::string& fields) {
    WriteText(model + "/generation_config.json", fields);
    command.insert(command.end(), {"--model", model});
    return RunBinary({command, "oros\n", {}});
  };
  const std::string odd = R"({"max_time": 2.5, "guidance_scale": 2, "num_beams": 2})";
  const std::vector<std::string> bench = {"bench", "--repetitions", "1", "--warmup",
                                          "0",     "--new-tokens",  "1", "--mode"};
  std::vector<std::string> bench_generate = bench, bench_encode = bench;
  bench_generate.push_back("generate");
  bench_encode.push_back("encode");
  const std::vector<std::vector<std::string>> decoding = {
      {"generate"},
      bench_generate,
      {"bench", "engine", "--concurrency", "1", "--requests", "1", "--output-tokens", "1:2"}};
  for (std::vector<std::string> command : decoding) {
    INFO(command[0] << " " << command.back());
    const Outcome refused = run(command, odd);
    CHECK(refused.exit_code == kExitModel);
    for (const char* part : {"generation_config.json: max_time is 2.5", "guidance_scale is 2",
                             "--ignore-generation-fields"}) {
      CHECK_THAT(refused.err, ContainsSubstring(part));
    }
    CHECK_THAT(refused.err, !ContainsSubstring("num_beams"));
    command.emplace_back("--ignore-generation-fields");
    const Outcome ignored = run(command, odd);
    CHECK(ignored.exit_code == kExitDone);
    CHECK_THAT(ignored.err, ContainsSubstring("generation_config.json: max_time is 2.5: ignored"));
    command.pop_back();
    CHECK(run(command, R"({"max_time": null, "penalty_alpha": 0})").exit_code == kExitDone);
  }
  // encode does not decode, so the decoding options of generation_config.json have no effect and
  // cause no warning or error.
  CHECK(run({"encode", "--quiet"}, odd).err.empty());
  CHECK(run(bench_encode, odd).exit_code == kExitDone);
  CHECK_THAT(run({"inspect"}, odd).out, ContainsSubstring("max_time is 2.5"));
}

TEST_CASE(
    "max_length of generation_config.json counts the start token; 20 means no limit was set") {
  ScratchDirectory scratch;
  const std::string model = scratch / "model";
  std::filesystem::copy(G2pModel(), model);
  const auto tokens = [&](const std::string& fields) {
    WriteText(model + "/generation_config.json", fields);
    const Outcome outcome = RunBinary(
        {{"generate", "--model", model, "--ignore-eos", "--output", "json"}, "oros\n", {}});
    REQUIRE(outcome.exit_code == kExitDone);
    return json::parse(outcome.out)["sequences"][0]["token_ids"].size();
  };
  CHECK(tokens("{}") == 256);
  CHECK(tokens(R"({"max_length": 20})") == 256);
  CHECK(tokens(R"({"max_length": 21})") == 20);
  CHECK(tokens(R"({"max_length": 21, "max_new_tokens": 7})") == 7);
}

TEST_CASE("SIGINT ends a command with 130 after a complete line") {
  std::string words;
  for (int i = 0; i < 200000; ++i) words += "interrupted\n";
  const RunningBinary binary = StartBinary({{"generate", "--model", G2pModel()}, words, {}});
  struct stat output {};
  for (int ms = 0; ms < 60000 && fstat(binary.out, &output) == 0 && output.st_size == 0; ++ms) {
    usleep(1000);
  }
  kill(binary.pid, SIGINT);
  const Outcome outcome = Finish(binary);
  CHECK(outcome.exit_code == kExitInterrupted);
  CHECK_THAT(outcome.err, ContainsSubstring("interrupted after "));
  REQUIRE(!outcome.out.empty());
  CHECK(outcome.out.back() == '\n');
  CHECK(Lines(outcome.out).size() < 200000);
}

TEST_CASE("serve names the model and its directory in warnings about its files") {
  ScratchDirectory scratch;
  const std::string model = scratch / "model";
  std::filesystem::copy(G2pModel(), model);
  WriteText(model + "/model.safetensors", "damaged");
  WriteText(model + "/generation_config.json", R"({"penalty_alpha": 0.6})");
  const Outcome outcome = RunBinary({{"serve", "--model", "a=" + model, "--listen", "127.0.0.1:0",
                                      "--http-listen", "", "--ignore-generation-fields"},
                                     "",
                                     {}});
  CHECK(outcome.exit_code == kExitModel);
  CHECK_THAT(outcome.err,
             ContainsSubstring("model a: generation_config.json: penalty_alpha is 0.6: ignored\n"));
  CHECK_THAT(outcome.err, ContainsSubstring("quintet: serve: model a: " + model + ": "));
}

TEST_CASE("a text that a normalizer makes too long fails only its line") {
  ScratchDirectory scratch;
  const std::string model = scratch / "model";
  std::filesystem::copy(G2pModel(), model);
  std::filesystem::remove(model + "/spiece.model");
  nlohmann::json tokenizer = nlohmann::json::parse(R"({"normalizer": {"type": "Replace",
      "pattern": {"String": "a"}}, "model": {"type": "Unigram", "unk_id": 0,
      "vocab": [["<unk>", 0.0], ["o", -1.0], ["r", -1.0]]}})");
  tokenizer["normalizer"]["content"] = std::string(4000, 'o');
  WriteText(model + "/tokenizer.json", tokenizer.dump());
  // Declare the tokenizer class PreTrainedTokenizerFast, which applies the normalizer in
  // tokenizer.json. T5Tokenizer, the class of the shipped model g2p, would ignore that normalizer.
  WriteText(model + "/tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  const std::string hostile(5000, 'a');
  const Outcome outcome =
      RunBinary({{"generate", "--model", model}, "oro\n" + hostile + "\noro\n", {}});
  CHECK(outcome.exit_code == kExitFailed);
  const std::vector<std::string> lines = Lines(outcome.out);
  REQUIRE(lines.size() == 3);
  CHECK(!lines[0].empty());
  CHECK(lines[1].empty());
  CHECK(lines[2] == lines[0]);
  CHECK_THAT(outcome.err,
             ContainsSubstring("to lengthen a text of 5000 bytes by at most 16777216 bytes"));
}

TEST_CASE("bench rejects invalid decoding options before it measures") {
  for (const auto& [flag, value, message] : std::initializer_list<std::array<const char*, 3>>{
           {"--top-p", "nan", "top_p: nan is not in (0, 1]"},
           {"--repetition-penalty", "-1", "repetition_penalty"},
           {"--temperature", "-1", "temperature"}}) {
    INFO(flag);
    const Outcome outcome = OnModel("bench", {"--do-sample", flag, value}, "");
    CHECK(outcome.exit_code == kExitUsage);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, ContainsSubstring(message));
  }
}

TEST_CASE("empty input gives empty output") {
  for (const char* command : {"generate", "encode", "score"}) {
    const Outcome outcome = OnModel(command, {}, "");
    CHECK(outcome.exit_code == kExitDone);
    CHECK(outcome.out.empty());
  }
}

TEST_CASE("an empty line is processed as an input") {
  const Outcome outcome = OnModel("generate", {}, "oros\n\noros\n");
  CHECK(outcome.exit_code == kExitDone);
  const std::vector<std::string> lines = Lines(outcome.out);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == lines[2]);
}

TEST_CASE("a failed line keeps its place and does not change the others") {
  const std::string longer(50, 'a');
  Outcome outcome =
      OnModel("generate", {"--max-input-tokens", "20"}, "oros\n" + longer + "\nwagner\n");
  CHECK(outcome.exit_code == kExitFailed);
  CHECK(outcome.out == "AO1 R OW0 Z\n\nW AE1 G N ER0\n");
  CHECK_THAT(outcome.err, ContainsSubstring("line 2"));
  CHECK_THAT(outcome.err, !ContainsSubstring(longer));  // no input text in messages

  outcome = OnModel("generate", {"--input", "json", "--output", "json"},
                    "{\"text\":\"oros\"}\nnot "
                    "json\n{\"token_ids\":[5000]}\n{\"text\":3}\n{}\n{\"text\":\"wagner\"}\n");
  CHECK(outcome.exit_code == kExitFailed);
  const std::vector<std::string> lines = Lines(outcome.out);
  REQUIRE(lines.size() == 6);
  for (size_t i = 0; i < lines.size(); ++i) {
    const json line = json::parse(lines[i]);
    CHECK(line["line"] == i + 1);
    const bool good = i == 0 || i == 5;
    CHECK(line.contains("sequences") == good);
    CHECK(line.contains("error") == !good);
    if (!good) CHECK(line["error"]["code"] == "INVALID_ARGUMENT");
  }
}

TEST_CASE("text output without a tokenizer is a usage error") {
  const std::string model = std::string(QUINTET_SOURCE_DIR) + "/tests/golden/cases/t5-v1_1";
  const std::string ids = "{\"token_ids\": [5, 6, 1]}\n";
  const auto run = [&](const char* output) {
    return RunBinary(
        {{"generate", "--model", model, "--input", "json", "--output", output}, ids, {}});
  };
  CHECK(run("json").exit_code == kExitDone);
  const Outcome text = run("text");
  CHECK(text.exit_code == kExitModel);
  CHECK(text.out.empty());
  CHECK_THAT(text.err, ContainsSubstring("tokenizer"));
}

TEST_CASE("truncation keeps the end of sequence") {
  const Outcome cut = OnModel("generate", {"--max-input-tokens", "6", "--truncate"}, "wagnerian\n");
  const Outcome whole = OnModel("generate", {}, "wagn\n");
  CHECK(cut.exit_code == kExitDone);
  CHECK(cut.out == whole.out);  // "▁wagn" and the end: six tokens
}

TEST_CASE("sequences of a line are separated by tabs; json has ids, scores and log-probabilities") {
  const std::vector<std::string> flags = {"--num-beams", "4", "--num-return-sequences", "3"};
  CHECK(Lines(OnModel("generate", flags, "oros\n").out).size() == 1);
  std::vector<std::string> with_json = flags;
  with_json.insert(with_json.end(),
                   {"--output", "json", "--return-scores", "--logprobs", "--top-logprobs", "2"});
  const Outcome outcome = OnModel("generate", with_json, "oros\n");
  REQUIRE(outcome.exit_code == kExitDone);
  const json line = json::parse(outcome.out);
  REQUIRE(line["sequences"].size() == 3);
  double previous = 0;
  for (const json& sequence : line["sequences"]) {
    CHECK(sequence["finish_reason"] == "eos");
    CHECK(sequence["token_ids"].size() == sequence["logprobs"].size());
    CHECK(sequence["score"].get<double>() <= previous);
    previous = sequence["score"].get<double>();
    double sum = 0;
    for (const json& token : sequence["logprobs"]) {
      sum += token["logprob"].get<double>();
      CHECK(token["top"].size() == 2);
    }
    CHECK(sum / static_cast<double>(sequence["logprobs"].size()) == Approx(previous).margin(1e-4));
  }
}

TEST_CASE("invalid decoding options are usage errors") {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--temperature", "0.5"},
                                             {"--num-beams", "33"},
                                             {"--num-beams", "0"},
                                             {"--temperature", "nan", "--do-sample"},
                                             {"--early-stopping", "sometimes"},
                                             {"--bad-words-ids", "1,x"},
                                             {"--suppress-tokens", "4000"},
                                             {"--num-return-sequences", "2"},
                                             {"--num-beams", "8", "--max-running", "4"}}) {
    const Outcome outcome = OnModel("generate", flags, "a\n");
    INFO(flags[0] << " " << flags[1]);
    CHECK(outcome.exit_code == kExitUsage);
    CHECK(outcome.out.empty());
    CHECK_FALSE(outcome.err.empty());
  }
}

TEST_CASE("sampling depends only on the seed and the line") {
  const std::vector<std::string> flags = {"--do-sample", "--temperature", "2", "--seed", "11"};
  const Outcome alone = OnModel("generate", flags, "serendipity\n");
  const Outcome among = OnModel("generate", flags, "oros\nserendipity\nwagner\n");
  REQUIRE(Lines(among.out).size() == 3);
  CHECK(Lines(among.out)[1] + "\n" == alone.out);
  std::vector<std::string> other = flags;
  other.back() = "12";
  CHECK(OnModel("generate", other, "serendipity\nphotosynthesis\n").out !=
        OnModel("generate", flags, "serendipity\nphotosynthesis\n").out);
}

TEST_CASE("special characters in outputs are escaped") {
  const Outcome outcome =
      OnModel("generate", {"--decoder-prefix", "K", "--echo", "--output", "json"}, "cat\n");
  REQUIRE(outcome.exit_code == kExitDone);
  CHECK_THAT(json::parse(outcome.out)["sequences"][0]["text"].get<std::string>(),
             ContainsSubstring("K"));
}

TEST_CASE("score sums the log-probabilities of tokens and prefers the right answer") {
  Outcome outcome = OnModel("score", {}, "wagner\tW AE1 G N ER0\tZ IY1\n");
  REQUIRE(outcome.exit_code == kExitDone);
  double right = 0, wrong = 0;
  REQUIRE(std::sscanf(outcome.out.c_str(), "%lf\t%lf", &right, &wrong) == 2);
  CHECK(right > wrong + 5);
  outcome = OnModel("score", {"--input", "json", "--output", "json"},
                    "{\"text\":\"wagner\",\"targets\":[\"W AE1 G N ER0\"]}\n");
  REQUIRE(outcome.exit_code == kExitDone);
  const json target = json::parse(outcome.out)["targets"][0];
  double sum = 0;
  for (const json& token : target["tokens"]) sum += token["logprob"].get<double>();
  CHECK(target["logprob"].get<double>() == Approx(sum).margin(1e-5));
  CHECK(target["logprob"].get<double>() == Approx(right).margin(1e-4));
  outcome = OnModel("score", {}, "no target\nwagner\tW AE1 G N ER0\n");
  CHECK(outcome.exit_code == kExitFailed);
  CHECK(Lines(outcome.out).size() == 2);
}

TEST_CASE("attention flags that a model does not support are a usage error of score") {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--prefix-lm"},
                                             {"--sliding-window", "3"},
                                             {"--sliding-window", "3", "--prefix-lm"},
                                             {"--sliding-window", "-1"}}) {
    const Outcome outcome = OnModel("score", flags, "wagner\tW AE1 G N ER0\n");
    INFO(flags[0]);
    CHECK(outcome.exit_code == kExitUsage);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, ContainsSubstring(flags[0] == "--prefix-lm" ? "prefix" : "sliding"));
  }
}

TEST_CASE("encode gives the same values as json, raw and NumPy") {
  const std::string input = "oros\nwagner\n";
  const Outcome text = OnModel("encode", {"--normalize"}, input);
  const Outcome raw = OnModel("encode", {"--normalize", "--output", "f32"}, input);
  const Outcome npy = OnModel("encode", {"--normalize", "--output", "npy"}, input);
  REQUIRE(text.exit_code == kExitDone);
  REQUIRE(raw.out.size() == 2 * 256 * sizeof(float));
  REQUIRE(npy.out.size() == 128 + raw.out.size());
  CHECK(npy.out.substr(128) == raw.out);
  CHECK(npy.out.substr(0, 6) == "\x93NUMPY");
  CHECK_THAT(npy.out.substr(0, 128), ContainsSubstring("'shape': (2, 256)"));
  double norm = 0;
  for (size_t row = 0; row < 2; ++row) {
    const json embedding = json::parse(Lines(text.out)[row])["embedding"];
    REQUIRE(embedding.size() == 256);
    for (size_t i = 0; i < 256; ++i) {
      float value;
      std::memcpy(&value, raw.out.data() + (row * 256 + i) * sizeof(float), sizeof(float));
      CHECK(embedding[i].get<float>() == value);
      norm += static_cast<double>(value) * value;
    }
  }
  CHECK(norm == Approx(2.0).epsilon(1e-5));
  const json tokens = json::parse(OnModel("encode", {"--pooling", "none"}, "oros\n").out);
  CHECK(tokens["embeddings"].size() == tokens["input_tokens"]);
}

TEST_CASE("bench prints its table and writes its report") {
  const std::string file = "/tmp/quintet_bench_" + std::to_string(getpid()) + ".json";
  const Outcome outcome = OnModel("bench",
                                  {"--batch", "1,2", "--num-beams", "1,2", "--input-tokens", "8",
                                   "--new-tokens", "4", "--repetitions", "2", "--json", file},
                                  "");
  REQUIRE(outcome.exit_code == kExitDone);
  std::ifstream stream(file);
  const json report = json::parse(stream);
  CHECK(report["rows"].size() == 6);  // two of encode, four of generate
  CHECK(Lines(outcome.out).size() == 8);
  for (const json& row : report["rows"]) {
    CHECK(row["wall_ms"].get<double>() > 0);
    CHECK(row["all_wall_ms"].size() == 2);
  }
  for (const char* key : {"version", "commit", "cpu", "threads", "dtype", "parameters"}) {
    CHECK(report["conditions"].contains(key));
  }
  std::remove(file.c_str());
}

// Checks that the result of a line (text, ids, scores, log-probabilities, hidden states) is
// bit-identical whether the line is processed alone on one thread or in a batch with other lines.
void CheckAloneAgainstBatch(const std::map<std::string, std::string>& environment) {
  std::string words;
  for (const std::string& line : Lines(TestFile("g2p/test.tsv"))) {
    words += line.substr(0, line.find('\t')) + "\n";
    if (words.size() > 400) break;
  }
  for (const char* beams : {"1", "3"}) {
    const std::vector<std::string> flags = {
        "--num-beams", beams, "--output", "json", "--logprobs", "--top-logprobs", "3"};
    std::vector<std::string> alone = flags, batch = flags;
    alone.insert(alone.end(), {"--max-running", beams, "--max-batch-tokens", "1",
                               "--max-input-tokens", "64", "--threads", "1"});
    batch.insert(batch.end(), {"--max-running", "48", "--threads", "2"});
    const Outcome one = OnModel("generate", alone, words, environment);
    const Outcome many = OnModel("generate", batch, words, environment);
    REQUIRE(one.exit_code == kExitDone);
    CHECK(one.out == many.out);
  }
  const Outcome many =
      OnModel("encode", {"--output", "f32", "--pooling", "none"}, words, environment);
  std::string one;
  const std::vector<std::string> lines = Lines(words);
  for (const std::string& word : {lines[0], lines[1], lines[7]}) {
    one = OnModel("encode", {"--output", "f32", "--pooling", "none"}, word + "\n", environment).out;
    REQUIRE_FALSE(one.empty());
    CHECK(many.out.find(one) != std::string::npos);
  }
}

TEST_CASE("the result of a line is bit-identical alone and in a batch") {
  CheckAloneAgainstBatch({});
}
TEST_CASE("the result of a line is bit-identical alone and in a batch with AVX2") {
  CheckAloneAgainstBatch({{"QUINTET_CPU_ISA", "avx2"}});
}

}  // namespace
}  // namespace quintet
