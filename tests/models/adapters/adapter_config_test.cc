#include "models/adapters/adapter_config.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

Json MinimalConfig() {
  return {{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q", "v"}}};
}

AdapterConfig MustParse(const Json& file) {
  const absl::StatusOr<AdapterConfig> config =
      ParseAdapterConfig(file.dump(), "adapter_config.json");
  INFO(config.status());
  REQUIRE(config.ok());
  return *config;
}

absl::Status Problem(const Json& file) {
  return ParseAdapterConfig(file.dump(), "adapter_config.json").status();
}

constexpr char kSecondQuery[] = "encoder.block.1.layer.0.SelfAttention.q";

TEST_CASE("Rank and scale of a module follow patterns and rsLoRA") {
  Json file = MinimalConfig();
  file["rank_pattern"] = {{"SelfAttention.q", 16}};
  file["alpha_pattern"] = {{"encoder\\..*", 3.0}};
  const AdapterConfig config = MustParse(file);
  CHECK(*config.RankOf(kSecondQuery) == 16);
  CHECK(*config.RankOf("decoder.block.0.layer.1.EncDecAttention.v") == 4);
  CHECK(*config.ScaleOf(kSecondQuery) == 3.0f / 16);
  CHECK(*config.ScaleOf("decoder.block.0.layer.1.EncDecAttention.v") == 2.0f);
  file["use_rslora"] = true;
  CHECK(*MustParse(file).ScaleOf(kSecondQuery) == 0.75f);
}

TEST_CASE("Two keys that give one module different values are an error") {
  Json file = MinimalConfig();
  file["rank_pattern"] = {{"q", 2}, {"SelfAttention.q", 3}};
  CHECK(absl::IsInvalidArgument(MustParse(file).RankOf(kSecondQuery).status()));
  file["rank_pattern"]["q"] = 3;
  CHECK(*MustParse(file).RankOf(kSecondQuery) == 3);
}

TEST_CASE("Targets are suffixes, an expression or all, less the excluded modules") {
  CHECK(MustParse(MinimalConfig()).Targets(kSecondQuery));
  CHECK(!MustParse(MinimalConfig()).Targets("encoder.block.1.layer.0.SelfAttention.k"));
  Json file = MinimalConfig();
  file["target_modules"] = "encoder.*(q|k)";
  CHECK(MustParse(file).Targets(kSecondQuery));
  CHECK(!MustParse(file).Targets("decoder.block.1.layer.0.SelfAttention.q"));
  file["exclude_modules"] = ".*block\\.1.*";
  CHECK(!MustParse(file).Targets(kSecondQuery));
  file["target_modules"] = "all-linear";
  file["exclude_modules"] = {"wo"};
  CHECK(MustParse(file).all_linear);
  CHECK(MustParse(file).Targets(kSecondQuery));
  CHECK(!MustParse(file).Targets("encoder.block.0.layer.1.DenseReluDense.wo"));
}

TEST_CASE("layers_to_transform counts in the list that layers_pattern names") {
  Json file = MinimalConfig();
  file["layers_to_transform"] = {1};
  file["layers_pattern"] = "block";
  CHECK(MustParse(file).Targets(kSecondQuery));
  CHECK(!MustParse(file).Targets("encoder.block.0.layer.0.SelfAttention.q"));
  // Without layers_pattern, PEFT uses the last number in a module's name as the layer. In
  // kSecondQuery this is the 0 of `layer.0`.
  file.erase("layers_pattern");
  CHECK(!MustParse(file).Targets(kSecondQuery));
  file["layers_to_transform"] = 0;
  CHECK(MustParse(file).Targets(kSecondQuery));
  file["layers_pattern"] = {"h"};
  file["target_modules"] = {"c_attn"};
  CHECK(MustParse(file).Targets("transformer.h.0.attn.c_attn"));
  CHECK(!MustParse(file).Targets("h.0.attn.c_attn"));  // a list needs a parent
}

TEST_CASE("Fields that change results are refused by name") {
  const std::pair<const char*, Json> fields[] = {{"peft_type", "LOHA"},
                                                 {"peft_type", "IA3"},
                                                 {"peft_type", "ADALORA"},
                                                 {"use_dora", true},
                                                 {"bias", "lora_only"},
                                                 {"lora_bias", true},
                                                 {"layer_replication", {{0, 2}}},
                                                 {"trainable_token_indices", {1}},
                                                 {"target_parameters", {"x"}},
                                                 {"init_lora_weights", "pissa_niter_4"},
                                                 {"init_lora_weights", "olora"},
                                                 {"layers_pattern", "a.b"},
                                                 {"a_field_of_the_future", 3},
                                                 {"megatron_config", {{"a", 1}}},
                                                 {"use_qalora", true},
                                                 {"corda_config", {{"a", 1}}}};
  for (const auto& [field, value] : fields) {
    Json file = MinimalConfig();
    file[field] = value;
    const absl::Status status = Problem(file);
    INFO(field << ": " << status);
    CHECK(absl::IsUnimplemented(status));
    CHECK(std::string(status.message()).find(field) != std::string::npos);
  }
}

TEST_CASE("Fields that are off, and fields without effect, are accepted") {
  Json file = MinimalConfig();
  file["a_field_of_the_future"] = nullptr;
  file["another"] = false;
  file["third"] = Json::object();
  file["lora_dropout"] = 0.1;
  file["init_lora_weights"] = "gaussian";
  file["megatron_core"] = "megatron.core";
  file["qalora_group_size"] = 16;
  file["bias"] = "none";
  MustParse(file);
}

TEST_CASE("Values out of range are errors that name the field") {
  const std::pair<const char*, Json> fields[] = {
      {"r", 0},
      {"r", 1025},
      {"r", 4.0},
      {"r", "4"},
      {"lora_alpha", "x"},
      {"lora_alpha", 1e300},
      {"target_modules", {1}},
      {"target_modules", {""}},
      {"target_modules", 3},
      {"modules_to_save", {{{"a", 1}}}},
      {"layers_to_transform", {-1}},
      {"layers_to_transform", {1.5}},
      {"rank_pattern", {{"q", 0}}},
      {"rank_pattern", {{"q", 2.5}}},
      {"rank_pattern", {{"q", 100000}}},
      {"rank_pattern", {1}},
      {"alpha_pattern", {{"q", "x"}}},
      {"rank_pattern", {{std::string(600, 'q'), 2}}},
  };
  for (const auto& [field, value] : fields) {
    Json file = MinimalConfig();
    file[field] = value;
    const absl::Status status = Problem(file);
    INFO(field << " " << value << ": " << status);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).find(field) != std::string::npos);
  }
  Json file = MinimalConfig();
  file.erase("target_modules");
  CHECK(absl::IsInvalidArgument(Problem(file)));
  file = MinimalConfig();
  file.erase("peft_type");
  CHECK(absl::IsInvalidArgument(Problem(file)));
  CHECK(absl::IsInvalidArgument(Problem(Json::array())));
  CHECK(absl::IsInvalidArgument(ParseAdapterConfig("{\"r\": 1, \"r\": 2}", "x").status()));
}

TEST_CASE("The number of regular expressions is limited") {
  Json file = MinimalConfig();
  for (int i = 0; i < 65; ++i) file["rank_pattern"][absl::StrCat("q", i, ".*")] = 2;
  CHECK(absl::IsInvalidArgument(Problem(file)));
}

}  // namespace
}  // namespace quintet
