#include "engine/placement.h"

#include "tests/catch.h"

namespace quintet {
namespace {

ModelConfig ConfigOf(int64_t d_model, int64_t d_ff) {
  ModelConfig config;
  config.d_model = d_model;
  config.heads = d_model / 64;
  config.head_dim = 64;
  config.d_ff = d_ff;
  return config;
}

std::string WarningOf(const std::string& dtype, const ModelConfig& config) {
  Placement placement;
  placement.device = "cuda";
  placement.dtype = dtype;
  return DtypeWarning(placement, config);
}

TEST_CASE("8-bit products that a model is too small for are warned of") {
  using Catch::Matchers::ContainsSubstring;
  const ModelConfig small = ConfigOf(256, 1016), t5_small = ConfigOf(512, 2048),
                    large = ConfigOf(1024, 2816);
  CHECK_THAT(WarningOf("int8-w8a8", small), ContainsSubstring("it runs as with int8"));
  CHECK_THAT(WarningOf("fp8-w8a8", small), ContainsSubstring("it runs as with fp8"));
  CHECK_THAT(WarningOf("fp8-w8a8", t5_small), ContainsSubstring("dtype fp8-w8a8"));
  CHECK(WarningOf("int8-w8a8", t5_small).empty());
  CHECK(WarningOf("fp8-w8a8", large).empty());
  CHECK(WarningOf("int8-w8a8", large).empty());
  CHECK(WarningOf("fp8", small).empty());
  CHECK(WarningOf("auto", small).empty());
}

TEST_CASE("names of devices: one, or several different GPUs") {
  for (const char* name :
       {"auto", "cpu", "cuda", "cuda:0", "cuda:1023", "cuda:0,1", "cuda:3,1,2", "cuda:all"}) {
    INFO(name);
    CHECK(CheckDeviceName(name).ok());
  }
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:1024", "cuda:0,", "cuda:,1",
                           "cuda:1,1", "cuda:0;1", "cuda:all,1", "cpu:0", "cuda:0 1x"}) {
    INFO(name);
    CHECK(absl::IsInvalidArgument(CheckDeviceName(name)));
  }
  CHECK(CanonicalDevice("gpu:1,2") == "cuda:1,2");
  Placement placement;
  placement.device = "cuda:2,0";
  CHECK(DeviceOrdinal(placement) == 2);
  const absl::Status refused = OpenDevice(&placement).status();
  CHECK_THAT(std::string(refused.message()),
             Catch::Matchers::ContainsSubstring("--device cuda:2,0: only serve, generate"));
  placement.device = "cpu";
  const auto devices = OpenDevices(&placement, /*several=*/true);
  REQUIRE(devices.ok());
  CHECK(devices->size() == 1);
  CHECK(devices->front() == nullptr);
}

TEST_CASE("a CPU refuses a KV cache of fp8") {
  CHECK(CheckCacheDtypeName("auto").ok());
  CHECK(CheckCacheDtypeName("fp8").ok());
  CHECK(CheckCacheDtypeName("int8").message() == "expected auto or fp8, got int8");
  Placement placement;
  placement.device = "cpu";
  CHECK_FALSE(HasFp8Cache(placement));
  CHECK(CacheTypeName(placement, ConfigOf(512, 2048)) == "f32");
  CHECK(OpenDevice(&placement).ok());
  placement.cache_dtype = "fp8";
  CHECK(HasFp8Cache(placement));
  const absl::Status refused = OpenDevice(&placement).status();
  CHECK(absl::IsInvalidArgument(refused));
  CHECK_THAT(std::string(refused.message()),
             Catch::Matchers::StartsWith("--cache-dtype: fp8 is not supported on a CPU"));
}

TEST_CASE("the type of the KV cache is that of the activations unless it is fp8") {
  const ModelConfig config = ConfigOf(512, 2048);
  const auto name = [&](const char* dtype, const char* cache_dtype) {
    Placement placement;
    placement.device = "cuda";
    placement.dtype = dtype;
    placement.cache_dtype = cache_dtype;
    return CacheTypeName(placement, config);
  };
  CHECK(name("auto", "auto") == "bf16");
  CHECK(name("int8", "auto") == "bf16");
  CHECK(name("f16", "auto") == "f16");
  CHECK(name("f32", "auto") == "f32");
  CHECK(name("auto", "fp8") == "fp8");
}

TEST_CASE("opening the device auto replaces it by the device that was opened") {
  Placement placement;
  placement.device = "auto";
  const auto devices = OpenDevices(&placement, /*several=*/true);
  REQUIRE(devices.ok());
  REQUIRE(devices->size() == 1);
  CHECK(placement.device == (devices->front() == nullptr ? "cpu" : "cuda"));
  CHECK_FALSE(placement.choice.empty());
  Placement resolved;
  resolved.device = "auto";
  ResolveAutoDevice(&resolved);
  CHECK(resolved.device == placement.device);
  CHECK(resolved.choice == placement.choice);
}

TEST_CASE("a converted type that the CPU does not support is warned of") {
  ModelConfig config = ConfigOf(256, 1016);
  config.converted_dtype = "fp8";
  Placement placement;
  placement.device = "cpu";
  CHECK_THAT(DtypeWarning(placement, config),
             Catch::Matchers::ContainsSubstring("holds fp8 weights"));
  placement.dtype = "f32";
  CHECK(DtypeWarning(placement, config).empty());
}

}  // namespace
}  // namespace quintet
