// Fuzz target: any bytes as a safetensors file. Checks the header, the offsets, and reads every
// tensor.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

// A memory file that stays open between inputs. The reader opens it by its path.
int File() {
  static const int file = memfd_create("fuzz", MFD_CLOEXEC);
  QT_CHECK_GE(file, 0);
  return file;
}

void ReadEverything(const SafetensorsReader& reader, int64_t file_bytes) {
  for (const StoredTensor& tensor : reader.tensors()) {
    QT_CHECK_GE(tensor.offset_bytes, 8);
    QT_CHECK_GE(tensor.bytes, 0);
    QT_CHECK_LE(tensor.offset_bytes + tensor.bytes, file_bytes);
    QT_CHECK(reader.Find(tensor.name) == &tensor);
    std::vector<char> bytes(static_cast<size_t>(tensor.bytes));
    QT_CHECK(reader.Read(tensor, 0, tensor.bytes, bytes.data()).ok());
    Describe(tensor.type, tensor.shape);
    Printable(tensor.name);
  }
}

}  // namespace
}  // namespace quintet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  QT_CHECK_EQ(ftruncate(File(), 0), 0);
  QT_CHECK_EQ(pwrite(File(), data, size, 0), static_cast<ssize_t>(size));
  const std::string path = "/proc/self/fd/" + std::to_string(File());
  const auto reader = SafetensorsReader::OpenFile(path, /*follow_symlinks=*/true);
  if (reader.ok()) {
    ReadEverything(*reader, static_cast<int64_t>(size));
  } else {
    QT_CHECK(absl::IsInvalidArgument(reader.status()));
  }
  return 0;
}
