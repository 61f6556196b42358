// Fuzz target: any bytes as a config.json and, after a NUL, a generation_config.json. Checks the
// list of weights that a model with this config.json has, and the decoding options that follow from
// both files.
#include <string>

#include "engine/options.h"
#include "kernels/base/check.h"
#include "models/config/config.h"
#include "models/config/generation_config.h"
#include "models/weights/table.h"

namespace quintet {
namespace {

void CheckTable(const ModelConfig& config) {
  WeightDestinations destinations;
  for (const WeightSlot& slot : BuildWeightTable(config, &destinations)) {
    int64_t source_rows = 0;
    for (const WeightSource& source : slot.sources) source_rows += source.rows;
    for (const int64_t size : slot.shape) QT_CHECK_GE(size, 0);
    if (slot.shape.size() == 2) QT_CHECK_EQ(source_rows, slot.shape[0]);
  }
}

void CheckDefaults(const ModelConfig& config, const GenerationDefaults& defaults) {
  const std::vector<int32_t> input = {0};
  const auto options = ResolveDecoding({}, defaults, config, {}, input);
  if (options.ok()) QT_CHECK(CheckDecoding(*options, config.vocab).ok());
}

}  // namespace
}  // namespace quintet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const auto config = ParseModelConfig(input.substr(0, end), "config.json");
  const auto defaults = ParseGenerationDefaults(end == input.npos ? "{}" : input.substr(end + 1),
                                                "generation_config.json");
  if (!config.ok()) return 0;
  CheckTable(*config);
  if (defaults.ok()) CheckDefaults(*config, *defaults);
  return 0;
}
