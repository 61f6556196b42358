// Tests of the commands quintet convert and quintet inspect.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tests/tools/run_binary.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

Outcome Call(std::vector<std::string> args, const std::string& input = "") {
  return RunBinary({std::move(args), input, {}});
}

TEST_CASE("A converted model gives the results of its source") {
  ScratchDirectory scratch;
  const std::string words = "hello\nquintet\nthought\n";
  const Outcome source = Call({"generate", "--model", G2pModel(), "--num-beams", "2"}, words);
  REQUIRE(source.exit_code == 0);
  for (const char* dtype : {"source", "f32", "f16"}) {
    const Outcome converted =
        Call({"convert", "--model", G2pModel(), "--out", scratch / dtype, "--dtype", dtype});
    INFO(converted.err);
    REQUIRE(converted.exit_code == 0);
    CHECK(converted.out.find("SHA-256") != std::string::npos);
    const Outcome result =
        Call({"generate", "--model", scratch / dtype, "--num-beams", "2"}, words);
    INFO(dtype << ": " << result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out == source.out);
  }
}

TEST_CASE("An adapter is merged and checked, and shown by inspect") {
  ScratchDirectory scratch;
  const std::string data = QUINTET_SOURCE_DIR "/tests/data/";
  const std::string base = data + "families/t5", adapter = data + "adapters/t5-qv";
  const Outcome merged = Call({"convert", base, scratch / "merged", "--adapter", adapter});
  INFO(merged.err);
  CHECK(merged.exit_code == 0);
  CHECK(merged.out.find("decoder.cross_kv.weight") != std::string::npos);
  CHECK(merged.out.find("passed") != std::string::npos);
  const Outcome wrong =
      Call({"convert", data + "families/gpt2", scratch / "wrong", "--adapter", adapter});
  CHECK(wrong.exit_code == 3);
  CHECK(wrong.err.find("unexpected") != std::string::npos);
  CHECK(!fs::exists(scratch / "wrong"));
  const Outcome form =
      Call({"convert", base, scratch / "fat5", "--adapter", adapter, "--to", "fat5"});
  CHECK(form.exit_code == 2);
  CHECK(form.err.find("--adapter: needs --to quintet") != std::string::npos);
  const Outcome shown = Call({"inspect", adapter, "--output", "json"});
  CHECK(shown.exit_code == 0);
  CHECK(nlohmann::json::parse(shown.out)["most_rank"] == 4);
  const Outcome fits = Call({"inspect", base, "--adapter", adapter, "--output", "json"});
  CHECK(nlohmann::json::parse(fits.out)["adapter"]["modules"]["q"] == 6);
}

TEST_CASE("The same input is converted to the same bytes") {
  ScratchDirectory scratch;
  for (const char* dtype : {"f32", "int8"}) {
    for (const char* out : {"first", "second"}) {
      REQUIRE(
          Call({"convert", "--model", G2pModel(), "--out", scratch / dtype + out, "--dtype", dtype})
              .exit_code == 0);
    }
    int files = 0;
    for (const auto& file : fs::directory_iterator(scratch / dtype + "first")) {
      ++files;
      const std::string name = file.path().filename().string();
      INFO(dtype << " " << name);
      CHECK(Sha256OfFile(file.path()) == Sha256OfFile(scratch / dtype + "second/" + name));
    }
    CHECK(files >= 3);
  }
}

TEST_CASE("convert returns the documented exit codes") {
  ScratchDirectory scratch;
  const std::vector<std::string> convert = {"convert", "--model", G2pModel(), "--out",
                                            scratch / "out"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> args = convert;
    args.insert(args.end(), more.begin(), more.end());
    return Call(args);
  };
  CHECK(Call({"convert", "--model", G2pModel()}).exit_code == 2);
  CHECK(with({"--dtype", "fp7"}).exit_code == 2);
  CHECK(with({"--to", "fat5", "--dtype", "int8"}).exit_code == 2);
  CHECK(with({"--to", "fat5", "--dtype", "fp8"}).exit_code == 2);
  const Outcome no_model = Call({"convert", "--model", scratch / "none", "--out", scratch / "out"});
  CHECK(no_model.exit_code == 3);
  CHECK(no_model.err.find((scratch / "none") + ": no such directory") != std::string::npos);
  const Outcome no_parent =
      Call({"convert", "--model", G2pModel(), "--out", scratch / "none" + "/out"});
  CHECK(no_parent.exit_code == 1);  // the error is in the output, not in the model
  CHECK(no_parent.err.find(scratch / "none") != std::string::npos);
  WriteText(scratch / "file", "");
  const Outcome no_directory = Call({"convert", "--model", G2pModel(), "--out", scratch / "file"});
  CHECK(no_directory.exit_code == 1);
  CHECK(no_directory.err == "quintet: " + (scratch / "file") + " exists and is not a directory\n");
  std::filesystem::remove(scratch / "file");
  CHECK(with({"--to", "t5"}).exit_code == 3);  // the model is already a T5
  CHECK(scratch.Entries().empty());
  CHECK(with({}).exit_code == 0);
  const Outcome exists = with({});
  CHECK(exists.exit_code == 1);
  CHECK(exists.err.find("--force") != std::string::npos);
  CHECK(with({"--force", "--dtype", "int8"}).exit_code == 0);
}

TEST_CASE("An unwritable --out is a usage error, and no file is written") {
  ScratchDirectory scratch;
  fs::copy(G2pModel(), scratch / "model");
  fs::create_directory_symlink(scratch / "model", scratch / "link");
  const std::string sha = Sha256OfFile(scratch / "model/model.safetensors");
  const std::pair<std::string, std::string> cases[] = {
      {"", "empty path"},
      {"/", "does not end in the name"},
      {scratch / "..", "must be separate directories"},
      {scratch / std::string(250, 'n'), "has 250 bytes, more than the limit of 223"},
      {scratch / std::string(5000, 'n'), "has 5000 bytes"},
      {scratch / "model", "is the model itself"},
      {scratch / "link", "is the model itself"},
      {scratch / "model/../link/.", "is the model itself"},
      {scratch / "model/out", "must be separate directories"}};
  for (const auto& [out, words] : cases) {
    for (const bool force : {false, true}) {
      std::vector<std::string> args = {"convert", "--model", scratch / "model", "--out", out};
      if (force) args.push_back("--force");
      const Outcome outcome = Call(args);
      INFO(out << ": " << outcome.err);
      CHECK(outcome.exit_code == 2);
      CHECK(outcome.err.rfind("quintet: --out: ", 0) == 0);
      CHECK(outcome.err.find(words) != std::string::npos);
    }
  }
  CHECK(Sha256OfFile(scratch / "model/model.safetensors") == sha);
  CHECK(scratch.Entries() == std::vector<std::string>{"link", "model"});
}

TEST_CASE("--dtype fp8 is rejected on a CPU, where fp8 directories run in another type") {
  ScratchDirectory scratch;
  const Outcome converted = Call(
      {"convert", "--model", G2pModel(), "--out", scratch / "out", "--dtype", "fp8", "--verify"});
  INFO(converted.out << converted.err);
  REQUIRE(converted.exit_code == 0);
  CHECK(Call({"inspect", scratch / "out"}).out.find("fp8") != std::string::npos);
  const auto generate = [&](const std::string& dtype) {
    return Call({"generate", "--model", scratch / "out", "--dtype", dtype}, "phoneme\n");
  };
  const Outcome refused = generate("fp8");
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("is not supported on this CPU") != std::string::npos);
  CHECK(generate("f32").out == Call({"generate", "--model", G2pModel()}, "phoneme\n").out);
  const Outcome fallback = Call({"generate", "--model", scratch / "out"}, "phoneme\n");
  CHECK(fallback.exit_code == 0);
  CHECK(fallback.out == generate("f32").out);
  CHECK(fallback.err.find("holds fp8 weights") != std::string::npos);
}

TEST_CASE("a converted directory runs in its own type unless --dtype says otherwise") {
  ScratchDirectory scratch;
  const std::string out = scratch / "out";
  REQUIRE(Call({"convert", "--model", G2pModel(), "--out", out, "--dtype", "int8"}).exit_code == 0);
  const auto memory = [&](const std::string& model, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"inspect", model, "--output", "json"});
    return nlohmann::json::parse(Call(flags).out)["memory"];
  };
  CHECK(memory(out, {})["dtype"] == "int8");
  CHECK(memory(out, {"--dtype", "auto"})["dtype"] == "int8");
  CHECK(memory(out, {"--dtype", "f32"})["dtype"] == "f32");
  CHECK(memory(G2pModel(), {})["dtype"] == "f32");
  CHECK(memory(out, {})["weights_bytes"] == memory(out, {"--dtype", "int8"})["weights_bytes"]);
  CHECK(memory(out, {})["weights_bytes"] < memory(out, {"--dtype", "f32"})["weights_bytes"]);
  // int8 and f32 weights give different log-probabilities, which therefore show the weights that a
  // run has used.
  const auto score = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"score", "--quiet", "--model", out});
    const Outcome scored = Call(flags, "phoneme\tF OW1 N IY2 M\n");
    CHECK(scored.exit_code == 0);
    CHECK(scored.err.empty());
    return scored.out;
  };
  CHECK(score({}) == score({"--dtype", "int8"}));
  CHECK(score({}) != score({"--dtype", "f32"}));
  const Outcome bench = Call({"bench", "--model", out, "--repetitions", "1", "--warmup", "0",
                              "--new-tokens", "1", "--mode", "encode", "--output", "json"});
  CHECK(nlohmann::json::parse(bench.out)["conditions"]["dtype"] == "int8");
  CHECK(Call({"generate", "--print-config"}).out.find("dtype = \"auto\"") != std::string::npos);
}

TEST_CASE("--verify reports every layer, and a failure leaves no directory") {
  ScratchDirectory scratch;
  const Outcome outcome = Call({"convert", "--model", G2pModel(), "--out", scratch / "out",
                                "--dtype", "int8", "--verify", "--output", "json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const auto report = nlohmann::json::parse(outcome.out);
  CHECK(report["verify"]["passed"] == true);
  CHECK(report["verify"]["stages"].size() == 4 + 1 + 4 + 1 + 1);
  CHECK(report["verify"]["stages"].back()["stage"] == "logits");
  CHECK(report["verify"]["stages"].back()["error"] > 0);

  const Outcome text = Call(
      {"convert", "--model", G2pModel(), "--out", scratch / "fat5", "--to", "fat5", "--verify"});
  CHECK(text.exit_code == 0);
  CHECK(text.out.find("decoder layer 3") != std::string::npos);
  CHECK(text.out.find("passed") != std::string::npos);
}

TEST_CASE("Interrupted or killed, convert leaves a complete directory or none") {
  ScratchDirectory scratch;
  int interrupted = 0;
  for (int round = 0; round < 40; ++round) {
    const int signal = round % 2 == 0 ? SIGTERM : SIGKILL;
    const RunningBinary binary =
        StartBinary({{"convert", "--model", G2pModel(), "--out", scratch / "out"}, "", {}});
    usleep(1000 + 4000 * round);
    kill(binary.pid, signal);
    const int exit_code = Finish(binary).exit_code;
    if (fs::exists(scratch / "out")) {
      REQUIRE(fs::exists(scratch / "out/config.json"));
      REQUIRE(fs::exists(scratch / "out/spiece.model"));
      fs::remove_all(scratch / "out");
    } else {
      ++interrupted;
    }
    // Exit code 0: the command finished before the signal. 130: it handled SIGTERM. 128 + signal:
    // the signal killed the process (SIGTERM only before its handler was installed).
    CHECK((exit_code == 0 || exit_code == 128 + signal || (signal == SIGTERM && exit_code == 130)));
  }
  CHECK(interrupted > 0);
  // The next run removes the temporary files that killed runs left behind.
  REQUIRE(Call({"convert", "--model", G2pModel(), "--out", scratch / "out"}).exit_code == 0);
  CHECK(std::distance(fs::directory_iterator(scratch / ""), fs::directory_iterator()) == 1);
}

TEST_CASE("inspect prints text or JSON") {
  const Outcome text = Call({"inspect", G2pModel()});
  INFO(text.err);
  REQUIRE(text.exit_code == 0);
  for (const char* part : {"t5, head: language model", "encoder 4, decoder 4", "not scaled",
                           "spiece.model", "warnings"}) {
    INFO(part);
    CHECK(text.out.find(part) != std::string::npos);
  }
  const auto small = nlohmann::json::parse(Call({"inspect", G2pModel(), "--output", "json"}).out);
  CHECK(small["config"]["d_model"] == 256);
  CHECK(small["parameters"] > 6000000);
  const auto large =
      nlohmann::json::parse(Call({"inspect", "--model", G2pModel(), "--output", "json", "--batch",
                                  "8", "--beams", "4", "--dtype", "int8"})
                                .out);
  // 8 requests of 512 input tokens, 256 output tokens and 4 beams; a page holds 16 tokens. Each
  // request needs 32 pages for the encoder output and 16 pages for each beam.
  CHECK(large["memory"]["cache_pages"] == 8 * (32 + 4 * 16));
  CHECK(large["memory"]["cache_bytes"] == 8 * (32 + 4 * 16) * 16 * 4 * 2 * 256 * 4);
  CHECK(large["memory"]["weights_bytes"] < small["memory"]["weights_bytes"]);
  CHECK(Call({"inspect", "/nowhere"}).exit_code == 3);
  CHECK(Call({"inspect"}).exit_code == 2);
}

}  // namespace
}  // namespace quintet
