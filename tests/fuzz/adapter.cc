// Fuzz target: any bytes as an adapter for a tiny T5. The first two bytes are the length of an
// adapter_config.json (little-endian), which follows; 0 means a file of kohya's format. The rest is
// the file of tensors. An adapter that is accepted is merged.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/adapters/adapter.h"
#include "models/adapters/adapter_summary.h"
#include "models/adapters/merge.h"

namespace quintet {
namespace {

constexpr char kModel[] = R"({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
  "vocab_size": 8, "d_model": 4, "d_kv": 2, "d_ff": 6, "num_layers": 1, "num_heads": 2,
  "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1})";

// A directory in memory, which one process uses for all inputs.
const std::string& Folder() {
  static const std::string* const folder = [] {
    std::string name = "/dev/shm/quintet_fuzz_XXXXXX";
    QT_CHECK(mkdtemp(name.data()) != nullptr);
    return new std::string(name);
  }();
  return *folder;
}

void Write(const std::string& name, const uint8_t* data, size_t size) {
  const int file = open((Folder() + "/" + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  QT_CHECK_GE(file, 0);
  QT_CHECK_EQ(write(file, data, size), static_cast<ssize_t>(size));
  close(file);
}

void Merge(const Adapter& adapter) {
  QT_CHECK(!adapter.factors.empty() || !adapter.saved.empty());
  for (const LoraFactors& f : adapter.factors) {
    QT_CHECK_EQ(static_cast<int64_t>(f.a.size()), f.rank * f.module.columns);
    QT_CHECK_EQ(static_cast<int64_t>(f.b.size()), f.rank * f.module.rows);
    const int64_t rows = f.module.row + f.module.rows;
    std::vector<float> values(static_cast<size_t>(rows * f.module.columns));
    MergedParameter(adapter, f.module.parameter).Apply(0, rows, f.module.columns, values.data());
  }
}

}  // namespace
}  // namespace quintet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  static const ModelConfig* const config =
      new ModelConfig(*ParseModelConfig(kModel, "config.json"));
  if (size < 2) return 0;
  const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - 2);
  const bool peft = length > 0;
  if (peft) Write("adapter_config.json", data + 2, length);
  const std::string weights = peft ? "adapter_model.safetensors" : "kohya.safetensors";
  Write(weights, data + 2 + length, size - 2 - length);
  const std::string path = peft ? Folder() : Folder() + "/" + weights;
  InspectAdapter(path, false).IgnoreError();
  const absl::StatusOr<Adapter> adapter = ReadAdapter(path, *config);
  if (adapter.ok()) {
    Merge(*adapter);
  } else {
    QT_CHECK(absl::IsInvalidArgument(adapter.status()) || absl::IsUnimplemented(adapter.status()));
  }
  return 0;
}
