#include "tests/models/checkpoint/checkpoint.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace quintet {

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "quintet_XXXXXX").string();
  QT_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string FileBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  QT_CHECK(in.good());
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  QT_CHECK(out.good());
}

std::string SafetensorsBytes(const std::string& header, size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + std::string(data_bytes, '\0');
}

std::string GoldenDirectory(const std::string& name) {
  return std::string(QUINTET_SOURCE_DIR "/tests/golden/cases/") + name;
}

namespace {

TestTensors ReadAll(const SafetensorsReader& reader) {
  TestTensors tensors;
  for (const StoredTensor& t : reader.tensors()) {
    std::string bytes(static_cast<size_t>(t.bytes), '\0');
    QT_CHECK(reader.Read(t, 0, t.bytes, bytes.data()).ok());
    TestTensor out = {t.type, t.shape, {}};
    const int64_t n = t.bytes / StoredTypeBytes(t.type);
    out.values.resize(static_cast<size_t>(n));
    if (t.type == StoredType::kI64) {
      for (size_t i = 0; i < out.values.size(); ++i) {
        int64_t value;
        std::memcpy(&value, bytes.data() + 8 * i, 8);
        out.values[i] = static_cast<float>(value);
      }
    } else {
      ConvertToF32(bytes.data(), *ToDType(t.type), n, out.values.data());
    }
    tensors[t.name] = std::move(out);
  }
  return tensors;
}

}  // namespace

TestTensors ReadTensors(const std::string& directory) {
  const auto reader = SafetensorsReader::Open(directory);
  QT_CHECK(reader.ok());
  return ReadAll(*reader);
}

TestTensors ReadTensorFile(const std::string& path) {
  const auto reader = SafetensorsReader::OpenFile(path);
  QT_CHECK(reader.ok());
  return ReadAll(*reader);
}

void WriteTensors(const std::string& directory, const TestTensors& tensors,
                  const std::string& file) {
  const std::string path = directory + "/" + file;
  std::filesystem::remove(path);
  std::vector<TensorSpec> specs;
  for (const auto& [name, t] : tensors) specs.push_back({name, t.type, t.shape});
  auto writer = SafetensorsWriter::Create(path, specs, {{"format", "pt"}});
  QT_CHECK(writer.ok());
  for (const auto& [name, t] : tensors) {
    std::string bytes(t.values.size() * static_cast<size_t>(StoredTypeBytes(t.type)), '\0');
    if (t.type == StoredType::kI64) {
      for (size_t i = 0; i < t.values.size(); ++i) {
        const auto value = static_cast<int64_t>(t.values[i]);
        std::memcpy(bytes.data() + 8 * i, &value, 8);
      }
    } else if (t.type == StoredType::kI8) {
      for (size_t i = 0; i < t.values.size(); ++i) bytes[i] = static_cast<char>(t.values[i]);
    } else {
      ConvertFromF32(t.values.data(), static_cast<int64_t>(t.values.size()), *ToDType(t.type),
                     bytes.data());
    }
    QT_CHECK(writer->Append(bytes.data(), static_cast<int64_t>(bytes.size())).ok());
  }
  QT_CHECK(writer->Finish().ok());
}

}  // namespace quintet
