#include "tests/fuzz/weight_file.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "kernels/base/check.h"
#include "models/checkpoint/weight_files.h"
#include "models/config/config.h"
#include "models/tokenizers/tokenizer_file.h"
#include "models/weights/table.h"

namespace quintet {
namespace {

constexpr int64_t kMostBytes = int64_t{64} << 20;

bool MayFail(const absl::Status& status) {
  return status.ok() || absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
         absl::IsNotFound(status) || absl::IsResourceExhausted(status);
}

void ReadEverything(const WeightFiles& files) {
  for (const StoredTensor& tensor : files.tensors()) {
    QT_CHECK(files.Find(tensor.name) == &tensor);
    Describe(tensor.type, tensor.shape);
    if (tensor.bytes > kMostBytes) continue;
    std::vector<char> bytes(static_cast<size_t>(tensor.bytes));
    QT_CHECK(MayFail(files.Read(tensor, 0, tensor.bytes, bytes.data())));
    // Reading a range in the middle of a tensor must give the same bytes as reading all of it.
    const int64_t size = StoredTypeBytes(tensor.type), values = tensor.bytes / size;
    const int64_t begin = values / 3 * size, part = (values - values / 3) / 2 * size;
    std::vector<char> middle(static_cast<size_t>(part));
    if (!files.Read(tensor, begin, part, middle.data()).ok()) continue;
    QT_CHECK(std::equal(middle.begin(), middle.end(), bytes.begin() + begin));
  }
}

}  // namespace

std::string FuzzFile(const uint8_t* data, size_t size, const std::string& suffix) {
  static const int file = memfd_create("fuzz", MFD_CLOEXEC);
  static std::string directory;
  QT_CHECK_GE(file, 0);
  QT_CHECK_EQ(ftruncate(file, 0), 0);
  QT_CHECK_EQ(pwrite(file, data, size, 0), static_cast<ssize_t>(size));
  if (directory.empty()) {
    std::string pattern = "/tmp/quintet_fuzz_XXXXXX";
    QT_CHECK(mkdtemp(pattern.data()) != nullptr);
    directory = pattern;
    const std::string target = "/proc/self/fd/" + std::to_string(file);
    for (const char* name : {"/model.gguf", "/encoder.safetensors"}) {
      QT_CHECK_EQ(symlink(target.c_str(), (directory + name).c_str()), 0);
    }
    atexit([] {
      for (const char* name : {"/model.gguf", "/encoder.safetensors", ""}) {
        remove((directory + name).c_str());
      }
    });
  }
  return directory + (suffix == ".gguf" ? "/model.gguf" : "/encoder.safetensors");
}

void ReadWeightFile(const std::string& path) {
  const auto files = WeightFiles::Open(path, /*follow_symlinks=*/true);
  QT_CHECK(MayFail(files.status()));
  if (files.ok()) ReadEverything(**files);
  auto config = ReadModelConfig(path);
  QT_CHECK(MayFail(config.status()));
  if (files.ok() && config.ok()) {
    WeightDestinations destinations;
    QT_CHECK(MayFail(PlanWeights(**files, &*config, &destinations).status()));
  }
  const auto tokenizer = LoadTokenizer(path, config.ok() ? FamilyName(config->family) : "t5");
  QT_CHECK(MayFail(tokenizer.status()));
  if (tokenizer.ok())
    QT_CHECK(MayFail((*tokenizer)->Encode("a text <x> \xE2\x96\x81", true).status()));
}

}  // namespace quintet
