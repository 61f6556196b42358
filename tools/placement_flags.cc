#include "tools/placement_flags.h"

#include <string>
#include <vector>

#include "models/checkpoint/dtype_names.h"

namespace quintet {

namespace {

// Validates the value of --device with CheckDeviceName and replaces an alias (gpu) by its canonical
// name (cuda). The completion scripts offer the values that the validator's description lists in
// braces.
CLI::Validator KnownDevice() {
  return CLI::Validator(
      [](std::string& name) -> std::string {
        name = CanonicalDevice(name);
        return std::string(CheckDeviceName(name).message());
      },
      "{auto,cpu,cuda}");
}

}  // namespace

void AddPlacementFlags(CLI::App* command, Placement* placement) {
  constexpr char kGroup[] = "Model";
  placement->device = kAutoPlacement;
  command
      ->add_option(
          "--device", placement->device,
          "Device to run the model on: cpu, cuda (or gpu, the first GPU) or cuda:N; "
          "serve, generate, encode, score and classify also run on several GPUs: cuda:N,M,... "
          "or cuda:all. auto: the first GPU if there is one and this build has CUDA, "
          "otherwise the CPU; the log says which.")
      ->transform(KnownDevice())
      ->type_name("DEVICE")
      ->group(kGroup);
  std::vector<std::string> dtypes = {kAutoPlacement};
  dtypes.insert(dtypes.end(), std::begin(kDtypes), std::end(kDtypes));
  command
      ->add_option(
          "--dtype", placement->dtype,
          "Type of the GEMM weights: f32, int8, bf16 (GPUs and CPUs that support it), f16 (GPU) or "
          "fp8 (e4m3, GPU). auto: the type of a converted directory if the device supports it, "
          "otherwise f32 on a CPU and bf16 on a GPU. On a GPU, activations are bf16 with int8 and "
          "fp8 weights. int8-w8a8 and fp8-w8a8 (Hopper GPUs) have the same weights, but GEMMs of "
          "more than 32 tokens and at least 1024 inputs quantise these, too, one scale per token, "
          "and multiply 8-bit values: faster for encoders of XXL and large batches of XL, and less "
          "exact.")
      ->check(CLI::IsMember(dtypes))
      ->transform(DtypeAliases())
      ->type_name("TYPE")
      ->group(kGroup);
  std::vector<std::string> cache_dtypes = {kAutoPlacement};
  cache_dtypes.insert(cache_dtypes.end(), std::begin(kCacheDtypes), std::end(kCacheDtypes));
  command
      ->add_option(
          "--cache-dtype", placement->cache_dtype,
          "Type of the keys and values in the KV cache: fp8 (e4m3 without scales, GPU, with bf16 "
          "or f16 activations) halves the cache's memory per token and the time to read it. auto: "
          "the type of the activations.")
      ->check(CLI::IsMember(cache_dtypes))
      ->type_name("TYPE")
      ->group(kGroup);
}

CLI::Validator DtypeAliases() {
  return CLI::Validator(
      [](std::string& name) -> std::string {
        name = CanonicalDtype(name);
        return "";
      },
      "");
}

}  // namespace quintet
