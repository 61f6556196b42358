// Builds GGUF files for tests, valid ones and damaged ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quintet {

class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data; the key general.alignment is not written

  template <typename T>
  static std::string Bytes(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static std::string Text(const std::string& text) { return Bytes<uint64_t>(text.size()) + text; }

  // Adds a key with a value of ggml's value type `type`, given as bytes.
  GgufBuilder& Key(const std::string& name, uint32_t type, const std::string& value) {
    keys_ += Text(name) + Bytes(type) + value;
    ++key_count_;
    return *this;
  }
  GgufBuilder& Key(const std::string& name, const std::string& text) {
    return Key(name, 8, Text(text));
  }
  GgufBuilder& Key(const std::string& name, uint32_t number) { return Key(name, 4, Bytes(number)); }
  // Adds a key with an array of `count` elements of the type `element`, given as bytes.
  GgufBuilder& Array(const std::string& name, uint32_t element, uint64_t count,
                     const std::string& values) {
    return Key(name, 9, Bytes(element) + Bytes(count) + values);
  }

  // Adds a tensor. `dims`: innermost first, as in the file. Its data is appended, padded to the
  // alignment.
  GgufBuilder& Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                      const std::string& data) {
    return Described(name, dims, type, data_.size(), data);
  }
  // Like Tensor, but writes `offset`, even a wrong one, to the header as the offset of the data.
  GgufBuilder& Described(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                         uint64_t offset, const std::string& data) {
    tensors_ += Text(name) + Bytes(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_ += Bytes(dim);
    tensors_ += Bytes(type) + Bytes(offset);
    ++tensor_count_;
    data_ += data;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }

  std::string File() const { return File(tensor_count_, key_count_); }
  // Returns the content of the file. Its header has the two given counts, even if they are wrong.
  std::string File(uint64_t tensor_count, uint64_t key_count) const {
    std::string file =
        "GGUF" + Bytes(version) + Bytes(tensor_count) + Bytes(key_count) + keys_ + tensors_;
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

 private:
  std::string keys_, tensors_, data_;
  uint64_t key_count_ = 0, tensor_count_ = 0;
};

}  // namespace quintet
