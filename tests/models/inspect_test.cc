#include "models/inspect.h"

#include <filesystem>
#include <string>

#include "models/convert/convert.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Inspect returns the contents of a directory") {
  const Inspection in = *InspectModel(GoldenDirectory("t5-v1_1"), "", false);
  CHECK(in.config.family == Family::kT5);
  CHECK(in.config.scale_logits == false);
  CHECK(in.stored_values.size() == 1);
  CHECK(in.stored_values.at("BF16") > 100000);
  CHECK(in.tokenizer.file.empty());
  CHECK(in.weights_sha256.empty());
  bool found = false;
  for (const auto& [name, bytes] : in.files) {
    found |=
        name == "model.safetensors" &&
        bytes == static_cast<int64_t>(fs::file_size(GoldenDirectory("t5-v1_1/model.safetensors")));
  }
  CHECK(found);
  CHECK(*InspectModel(GoldenDirectory("t5-v1_0"), "", false)->config.scale_logits);
}

TEST_CASE("Inspect recognises a converted directory") {
  ScratchDirectory scratch;
  ConvertOptions options;
  options.source = GoldenDirectory("t5-v1_1");
  options.target = scratch / "out";
  options.dtype = DType::kI8;
  const ConvertResult result = *Convert(options);
  const Inspection in = *InspectModel(scratch / "out", "", false);
  CHECK(in.config.converted_dtype == "int8");
  CHECK(in.weights_sha256 == result.weights_sha256);
  CHECK(in.stored_values.count("I8") == 1);
}

TEST_CASE("Inspect rejects directories without a model") {
  ScratchDirectory scratch;
  CHECK(InspectModel(scratch / "none", "", false).status().code() == absl::StatusCode::kNotFound);
  fs::create_directory(scratch / "bad");
  WriteText(scratch / "bad/config.json", "{\"model_type\": \"t5\"");
  CHECK(InspectModel(scratch / "bad", "", false).status().code() ==
        absl::StatusCode::kInvalidArgument);
  fs::copy_file(GoldenDirectory("t5-v1_1/config.json"), scratch / "bad/config.json",
                fs::copy_options::overwrite_existing);
  CHECK(InspectModel(scratch / "bad", "", false).status().code() == absl::StatusCode::kNotFound);
}

// Returns the Inspection of a correct language model, which causes no warnings.
Inspection Sound() {
  Inspection in;
  in.config.vocab = 1000;
  in.config.encoder_layers = in.config.decoder_layers = 1;
  in.config.pad_id = in.config.decoder_start_id = 0;
  in.config.eos_ids = {1};
  in.tokenizer.file = "spiece.model";
  in.tokenizer.vocab = 990;
  in.tokenizer.eos_id = 1;
  in.tokenizer.pad_id = 0;
  in.stored_values = {{"BF16", 10}};
  return in;
}

TEST_CASE("FindWarnings reports each likely mistake") {
  CHECK(FindWarnings(Sound()).empty());
  const struct {
    const char* expected;
    void (*make)(Inspection*);
  } cases[] = {
      {"eos_token_id: none", [](Inspection* in) { in->config.eos_ids.clear(); }},
      {"pad_token_id: none", [](Inspection* in) { in->config.pad_id = -1; }},
      {"is also an end-of-sequence id", [](Inspection* in) { in->config.decoder_start_id = 1; }},
      {"no tokenizer files", [](Inspection* in) { in->tokenizer = {}; }},
      {"higher ids are rejected", [](Inspection* in) { in->tokenizer.vocab = 1001; }},
      {"may belong to another model", [](Inspection* in) { in->tokenizer.vocab = 500; }},
      {"end-of-sequence id 2 differs", [](Inspection* in) { in->tokenizer.eos_id = 2; }},
      {"padding id 4 differs", [](Inspection* in) { in->tokenizer.pad_id = 4; }},
      {"stored as F16",
       [](Inspection* in) {
         in->stored_values = {{"F16", 10}};
       }},
      {"outside the embedding of 1000 rows",
       [](Inspection* in) { in->generation.suppress_tokens = {1000}; }},
      {"overrides config.json's 0",
       [](Inspection* in) { in->generation.decoder_start_token_id = 5; }},
      {"eos_token_id 3 overrides", [](Inspection* in) { in->generation.eos_token_ids = {3}; }},
      {"above the limit of 32", [](Inspection* in) { in->generation.num_beams = 33; }},
      {"have an effect only with do_sample",
       [](Inspection* in) { in->generation.temperature = 0.5; }},
  };
  for (const auto& c : cases) {
    Inspection in = Sound();
    c.make(&in);
    const std::vector<std::string> found = FindWarnings(in);
    INFO(c.expected);
    REQUIRE(found.size() == 1);
    CHECK(found[0].find(c.expected) != std::string::npos);
  }
}

TEST_CASE("FindWarnings accepts valid configurations") {
  Inspection in = Sound();
  in.config.family = Family::kGpt2;
  in.config.encoder_layers = 0;
  in.config.pad_id = -1;
  in.stored_values = {{"F16", 10}};
  in.generation.temperature = 0.5;
  in.generation.do_sample = true;
  CHECK(FindWarnings(in).empty());
  in = Sound();
  in.config.head = Head::kEncoder;
  in.config.eos_ids.clear();
  CHECK(FindWarnings(in).empty());
  in = Sound();
  in.tokenizer.vocab = 102;
  for (const int64_t padded : {104, 128}) {  // to a multiple of 8, and of 64 or 128
    in.config.vocab = padded;
    CHECK(FindWarnings(in).empty());
  }
}

}  // namespace
}  // namespace quintet
