// Loading the output of quintet convert gives the same weights as loading its source.
#include <cmath>

#include "kernels/linear/weight.h"
#include "models/checkpoint/safetensors.h"
#include "models/weights/table.h"
#include "models/weights/weights.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/loadable_checkpoint.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

// Returns the tensors of the checkpoint under the names that quintet convert writes. If `quantize`,
// matrices are int8.
TestTensors Convert(Checkpoint& c, bool quantize) {
  TemporaryDirectory directory;
  WriteTensors(directory.path(), c.tensors);
  const auto files = SafetensorsReader::Open(directory.path());
  REQUIRE(files.ok());
  WeightDestinations destinations;
  const auto plan = PlanWeights(*files, &c.model, &destinations);
  REQUIRE(plan.ok());
  TestTensors out;
  for (const PlannedWeight& p : *plan) {
    TestTensor t = {StoredType::kF32, p.slot.shape, {}};
    t.values.resize(static_cast<size_t>(p.rows() * p.columns()));
    TestTensor scales = {
        StoredType::kF32, {p.rows()}, std::vector<float>(static_cast<size_t>(p.rows()))};
    std::vector<char> staging(static_cast<size_t>(StagingBytes(p, p.rows())));
    const auto copy = [&](int64_t row, const Tensor& values, const Tensor&) {
      for (int64_t r = 0; r < values.dim[0]; ++r) {
        for (int64_t i = 0; i < values.dim[1]; ++i) {
          const int64_t at = r * values.stride[0] + i * values.stride[1];
          float& to = t.values[static_cast<size_t>((row + r) * values.dim[1] + i)];
          if (values.dtype == DType::kI64) {
            to = static_cast<float>(values.as<int64_t>()[at]);
          } else {
            ConvertToF32(values.as<char>() + at * DTypeBytes(values.dtype), values.dtype, 1, &to);
          }
        }
      }
    };
    REQUIRE(VisitRows(*files, p, 0, p.rows(), staging.data(), copy).ok());
    if (quantize && p.slot.kind == WeightKind::kMatrix) {
      t.type = StoredType::kI8;
      for (size_t r = 0; r < scales.values.size(); ++r) {
        scales.values[r] = 0.001f * static_cast<float>(r + 1);
        for (int64_t i = 0; i < p.columns(); ++i) {
          float& v = t.values[r * static_cast<size_t>(p.columns()) + static_cast<size_t>(i)];
          v = std::round(std::fmod(v * 1000.0f, 127.0f));
        }
      }
      out[p.slot.name.substr(0, p.slot.name.size() - 7) + ".scales"] = scales;
    }
    out[p.slot.name] = t;
  }
  return out;
}

TEST_CASE("A converted checkpoint loads with the values of its source", "[weights]") {
  for (const char* golden : {"t5-v1_0", "t5-v1_1", "umt5", "fat5-fire-32", "fat5-alibi",
                             "gpt2-variant", "t5-seqcls", "fat5-qa", "t5-encoder"}) {
    INFO(golden);
    Checkpoint source(golden);
    const auto expected = source.Load();
    REQUIRE(expected.ok());
    Checkpoint converted(golden);
    converted.tensors = Convert(source, false);
    converted.config["quintet"] = {
        {"format", 1}, {"dtype", "f32"}, {"scale_logits", *source.model.scale_logits}};
    const auto got = converted.Load();
    INFO(got.status().message());
    REQUIRE(got.ok());
    CHECK(Everything(*got) == Everything(*expected));
    CHECK(got->logit_scale == expected->logit_scale);
  }
}

TEST_CASE("A converted checkpoint loads without a stored tied head", "[weights]") {
  Checkpoint c("t5-v1_0");
  const auto expected = c.Load();
  c.tensors = Convert(c, false);
  c.tensors.erase("head.weight");
  c.config["quintet"] = {{"format", 1}, {"dtype", "f32"}, {"scale_logits", true}};
  const auto got = c.Load();
  REQUIRE(got.ok());
  CHECK(Everything(*got) == Everything(*expected));
}

TEST_CASE("int8 matrices of a converted checkpoint keep their values", "[weights]") {
  for (const char* golden : {"t5-v1_1", "fat5-relu-plain", "gpt2-variant"}) {
    INFO(golden);
    Checkpoint c(golden);
    REQUIRE(c.Load().ok());
    c.tensors = Convert(c, true);
    c.config["quintet"] = {{"format", 1}, {"dtype", "int8"}, {"scale_logits", false}};
    const auto packed = c.Load(WeightType::kI8);
    const auto floats = c.Load(WeightType::kF32);
    REQUIRE(packed.ok());
    REQUIRE(floats.ok());
    CHECK(Everything(*packed) == Everything(*floats));
    const LinearWeight& w = packed->decoder.layers[1].ffn_in;
    const auto& stored = c.tensors.at("decoder.layers.1.ffn_in.weight");
    const auto row = Rows(w, w.n() - 1, 1);
    const float scale = c.tensors.at("decoder.layers.1.ffn_in.scales").values.back();
    for (size_t i = 0; i < row.size(); ++i) {
      CHECK(row[i] == stored.values[stored.values.size() - row.size() + i] * scale);
    }

    c.tensors.erase("decoder.layers.1.ffn_in.scales");
    CHECK_THAT(c.Problem(), ContainsSubstring("missing: decoder.layers.1.ffn_in.scales"));
  }
}

}  // namespace
}  // namespace quintet
