// Runs the shipped model on its 6,000 held-out words with the quintet binary and compares with the
// recorded answers of Hugging Face.
#include <algorithm>
#include <cmath>

#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/open_gpu.h"
#include "tests/tools/run_binary.h"

namespace quintet {
namespace {

using nlohmann::json;

struct Words {
  std::string input;
  std::vector<std::string> references;
};

Words ReadWords() {
  Words words;
  for (const std::string& line : Lines(TestFile("g2p/test.tsv"))) {
    const size_t tab = line.find('\t');
    words.input += line.substr(0, tab) + "\n";
    words.references.push_back(line.substr(tab + 1));
  }
  REQUIRE(words.references.size() == 6000);
  return words;
}

struct Place {
  std::string device, dtype, cache_dtype = "auto";
};

std::vector<json> Answers(const Words& words, const std::string& beams, const Place& place) {
  std::vector<std::string> args = {"generate",  "--model",          G2pModel(),   "--num-beams",
                                   beams,       "--device",         place.device, "--dtype",
                                   place.dtype, "--max-new-tokens", "64",         "--output",
                                   "json"};
  if (beams != "1") args.push_back("--return-scores");
  if (place.cache_dtype != "auto") args.insert(args.end(), {"--cache-dtype", place.cache_dtype});
  const Outcome outcome = RunBinary({args, words.input, {}});
  REQUIRE(outcome.exit_code == 0);
  std::vector<json> answers;
  for (const std::string& line : Lines(outcome.out))
    answers.push_back(json::parse(line)["sequences"][0]);
  REQUIRE(answers.size() == words.references.size());
  return answers;
}

// Percentage of lines with the expected text.
double Agreement(const std::vector<json>& answers, const std::vector<std::string>& expected) {
  size_t equal = 0;
  for (size_t i = 0; i < answers.size(); ++i) equal += answers[i]["text"] == expected[i] ? 1 : 0;
  return 100.0 * static_cast<double>(equal) / static_cast<double>(answers.size());
}

// Word accuracy, in percent, of the recorded Hugging Face answers (tests/data/g2p/README.md),
// greedy and with 4 beams.
constexpr double kGreedyAccuracy = 64.33, kBeamAccuracy = 64.80;

void CheckF32(const std::string& device, const std::string& beams) {
  const Words words = ReadWords();
  const std::vector<std::string> recorded =
      json::parse(TestFile("g2p/g2p_hyp_beam" + beams + ".json"));
  const std::vector<json> answers = Answers(words, beams, {device, "f32"});
  const double agreement = Agreement(answers, recorded);
  WARN("f32, " << beams << " beams: " << agreement << " % of lines as recorded, word accuracy "
               << Agreement(answers, words.references) << " %");
  CHECK(agreement >= 99.9);
  if (beams == "1") return;
  const std::vector<double> scores = json::parse(TestFile("g2p/g2p_scores_beam4.json"));
  size_t close = 0;
  for (size_t i = 0; i < scores.size(); ++i) {  // recorded with five decimals
    close += std::abs(answers[i]["score"].get<double>() - scores[i]) <= 1e-4 ? 1 : 0;
  }
  CHECK(close >= 5994);
}

void CheckAccuracy(const Place& place, const std::string& beams, double points) {
  const Words words = ReadWords();
  const std::vector<json> answers = Answers(words, beams, place);
  const std::vector<std::string> recorded =
      json::parse(TestFile("g2p/g2p_hyp_beam" + beams + ".json"));
  const double accuracy = Agreement(answers, words.references);
  WARN(place.dtype << ", cache " << place.cache_dtype << ", " << beams << " beams: word accuracy "
                   << accuracy << " %, " << Agreement(answers, recorded)
                   << " % of lines as recorded in f32");
  CHECK(std::abs(accuracy - (beams == "1" ? kGreedyAccuracy : kBeamAccuracy)) <= points);
}

TEST_CASE("f32 greedy equals the recorded answers", "[f32][greedy]") { CheckF32("cpu", "1"); }
TEST_CASE("f32 with 4 beams equals the recorded answers and scores", "[f32][beam]") {
  CheckF32("cpu", "4");
}
TEST_CASE("int8 greedy keeps the word accuracy", "[int8][greedy]") {
  CheckAccuracy({"cpu", "int8"}, "1", 0.6);
}
TEST_CASE("int8 with 4 beams keeps the word accuracy", "[int8][beam]") {
  CheckAccuracy({"cpu", "int8"}, "4", 0.6);
}

TEST_CASE("f32 on a GPU equals the recorded answers and scores", "[gpu]") {
  if (OpenGpuOrSkip() == nullptr) return;
  CheckF32("cuda", "1");
  CheckF32("cuda", "4");
}
TEST_CASE("16-bit types on a GPU keep the word accuracy", "[gpu]") {
  if (OpenGpuOrSkip() == nullptr) return;
  for (const char* dtype : {"bf16", "f16"}) CheckAccuracy({"cuda", dtype}, "4", 0.3);
}
TEST_CASE("fp8 keys and values on a GPU keep the word accuracy", "[gpu]") {
  if (OpenGpuOrSkip() == nullptr) return;
  for (const char* dtype : {"bf16", "f16"}) CheckAccuracy({"cuda", dtype, "fp8"}, "4", 0.6);
  CheckAccuracy({"cuda", "bf16", "fp8"}, "1", 0.6);
}
TEST_CASE("8-bit weights on a GPU keep the word accuracy", "[gpu]") {
  if (OpenGpuOrSkip() == nullptr) return;
  for (const char* dtype : {"int8", "fp8"}) CheckAccuracy({"cuda", dtype}, "4", 0.6);
}

}  // namespace
}  // namespace quintet
