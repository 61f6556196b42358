#include "tools/serve_flags.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tools/flag_values.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

// The flags of serve, parsed from a command line and optionally a config file. The device is the
// CPU unless one of them sets it.
class Settled {
 public:
  explicit Settled(const std::string& arguments, const std::string& file = "",
                   const std::string& model = QUINTET_SOURCE_DIR "/deploy/models/g2p") {
    app_.option_defaults()->always_capture_default();
    AddServeFlags(line_, &app_, &flags_);
    app_.parse("--model " + model + " " + arguments);
    if (!file.empty()) ApplyFile(file);
    if (app_.get_option("--device")->count() == 0) flags_.placement.device = "cpu";
  }

  int64_t EncoderCacheBytes() const {
    return ServerOptionsOf(flags_)->models.at(0).engine.encoder_cache_bytes;
  }
  HostOptions Host() const { return ServerOptionsOf(flags_)->models.at(0); }
  std::string Printed() const { return PrintConfig(app_); }

 private:
  void ApplyFile(const std::string& file) {
    const std::string path = "/tmp/quintet_serve_flags_" + std::to_string(getpid()) + ".toml";
    std::ofstream(path) << file;
    REQUIRE(ApplyConfigFile(&app_, path).ok());
    std::remove(path.c_str());
  }

  CommandLine line_;
  CLI::App app_;
  ServeFlags flags_;
};

TEST_CASE("serve caches encoder outputs by default on a CPU, on a GPU only if requested") {
  const struct {
    const char* arguments;
    const char* file;
    int64_t bytes;
    bool given;
  } cases[] = {
      {"", "", 268435456, false},
      {"--device cpu", "", 268435456, false},
      {"--device cuda", "", 0, false},
      {"--device cuda:1", "", 0, false},
      {"", "device = \"cuda\"\n", 0, false},
      {"--device cpu", "device = \"cuda\"\n", 268435456, false},
      {"--encoder-cache-bytes 0", "", 0, true},
      {"--encoder-cache-bytes 4096 --device cuda", "", 4096, true},
      {"--device cuda", "encoder-cache-bytes = 4096\n", 4096, true},
      {"", "encoder-cache-bytes = 4096\ndevice = \"cuda\"\n", 4096, true},
  };
  for (const auto& c : cases) {
    INFO(c.arguments << " | " << c.file);
    const Settled settled(c.arguments, c.file);
    CHECK(settled.EncoderCacheBytes() == c.bytes);
    const std::string shown = c.given ? std::to_string(c.bytes) : "auto";
    CHECK_THAT(settled.Printed(), ContainsSubstring((c.given ? "\n" : "\n# ") +
                                                    ("encoder-cache-bytes = \"" + shown) + "\"\n"));
  }
}

TEST_CASE("vLLM's names of the batch limits are aliases that --help does not show") {
  const Settled settled("--max-num-seqs 7", "max-num-batched-tokens = 5000\nmax-running = 9\n");
  CHECK(settled.Host().limits.max_running == 7);
  CHECK(settled.Host().limits.max_batch_tokens == 5000);
  CHECK_THAT(settled.Printed(), ContainsSubstring("\nmax-running = \"7\"\n"));
}

TEST_CASE("serve has a flag for the type of the KV cache") {
  CHECK_FALSE(Settled("--device cuda").Host().load.fp8_cache);
  CHECK(Settled("--device cuda --cache-dtype fp8").Host().load.fp8_cache);
  CHECK(Settled("--device cuda", "cache-dtype = \"fp8\"\n").Host().load.fp8_cache);
  CHECK_FALSE(Settled("--device cuda --cache-dtype auto").Host().load.fp8_cache);
  CHECK_THAT(Settled("").Printed(), ContainsSubstring("\n# cache-dtype = \"auto\"\n"));
  CHECK_THAT(Settled("--device cuda --cache-dtype fp8").Printed(),
             ContainsSubstring("\ncache-dtype = \"fp8\"\n"));
  // A server loads the model again if the type changes.
  CHECK_FALSE(SameSettings(Settled("--device cuda").Host(),
                           Settled("--device cuda --cache-dtype fp8").Host()));
}

TEST_CASE("serve runs a converted directory in its own type where the device computes with it") {
  ScratchDirectory scratch;
  const struct {
    const char* held;
    const char* arguments;
    WeightType type;
  } cases[] = {
      {"int8", "", WeightType::kI8},
      {"int8", "--dtype auto", WeightType::kI8},
      {"int8", "--dtype f32", WeightType::kF32},
      {"int8", "--device cuda", WeightType::kI8},
      {"fp8", "--device cuda", WeightType::kF8},
      {"fp8", "--device cuda --dtype bf16", WeightType::kBF16},
      {"fp8", "--device cuda --dtype fp8-w8a8", WeightType::kF8W8A8},
      {"fp8", "", WeightType::kF32},
      {"f32", "--device cuda", WeightType::kF32},
      {"", "", WeightType::kF32},
      {"", "--device cuda", WeightType::kBF16},
  };
  for (const auto& c : cases) {
    INFO(c.held << " | " << c.arguments);
    nlohmann::json config = {{"model_type", "t5"}};
    if (*c.held != '\0') {
      config["quintet"] = {{"format", 1}, {"dtype", c.held}, {"scale_logits", false}};
    }
    WriteText(scratch / "config.json", config.dump());
    WriteText(scratch / "model.safetensors", "");
    CHECK(Settled(c.arguments, "", scratch / "").Host().load.weights == c.type);
  }
  // Reading the flags ignores a config.json that cannot be parsed: loading the model reports it.
  WriteText(scratch / "config.json", "{");
  CHECK(Settled("", "", scratch / "").Host().load.weights == WeightType::kF32);
  CHECK_FALSE(Settled("").Host().ignore_generation_fields);
  CHECK(Settled("--ignore-generation-fields").Host().ignore_generation_fields);
}

}  // namespace
}  // namespace quintet
