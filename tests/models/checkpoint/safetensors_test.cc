#include "models/checkpoint/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

absl::Status OpenBytes(const std::string& bytes) {
  TemporaryDirectory directory;
  WriteBytes(directory / "model.safetensors", bytes);
  return SafetensorsReader::Open(directory.path()).status();
}

TEST_CASE("Written tensors are read back unchanged", "[safetensors]") {
  TemporaryDirectory directory;
  const std::vector<TensorSpec> specs = {{"b", StoredType::kF32, {2, 3}},
                                         {"empty", StoredType::kI8, {0, 7}},
                                         {"a \"quoted\"\n", StoredType::kBF16, {}},
                                         {"ids", StoredType::kI64, {2}}};
  const std::string path = directory / "model.safetensors";
  const auto write = [&] {
    auto writer = SafetensorsWriter::Create(path, specs, {{"format", "pt"}, {"k", "v"}});
    REQUIRE(writer.ok());
    const std::string data =
        "0123456789abcdefghijklmn"
        "XY"
        "0123456701234567";
    // The data may be passed to Append in pieces of any size, here 5 bytes and the rest.
    REQUIRE(writer->Append(data.data(), 5).ok());
    REQUIRE(writer->Append(data.data() + 5, static_cast<int64_t>(data.size()) - 5).ok());
    REQUIRE(writer->Finish().ok());
  };
  write();
  const std::string first = FileBytes(path);
  CHECK(absl::IsAlreadyExists(SafetensorsWriter::Create(path, specs, {}).status()));

  auto reader = SafetensorsReader::Open(directory.path());
  REQUIRE(reader.ok());
  CHECK(reader->tensors().size() == 4);
  CHECK(reader->metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"k", "v"}});
  const StoredTensor* b = reader->Find("b");
  REQUIRE(b != nullptr);
  CHECK(b->type == StoredType::kF32);
  CHECK(b->shape == std::vector<int64_t>{2, 3});
  CHECK(b->offset_bytes % 64 == 0);
  char bytes[16] = {};
  REQUIRE(reader->Read(*b, 22, 2, bytes).ok());
  CHECK(std::string(bytes, 2) == "mn");
  const StoredTensor* quoted = reader->Find("a \"quoted\"\n");
  REQUIRE(quoted != nullptr);
  REQUIRE(reader->Read(*quoted, 0, 2, bytes).ok());
  CHECK(std::string(bytes, 2) == "XY");
  CHECK(reader->Find("empty")->bytes == 0);
  CHECK(reader->Find("c") == nullptr);

  std::filesystem::remove(path);
  write();
  CHECK(FileBytes(path) == first);
}

TEST_CASE("The writer rejects names that are not valid in a header", "[safetensors]") {
  TemporaryDirectory directory;
  const std::string path = directory / "x.safetensors";
  for (const std::vector<TensorSpec>& specs :
       {std::vector<TensorSpec>{{"a", StoredType::kF32, {1}}, {"a", StoredType::kF32, {1}}},
        std::vector<TensorSpec>{{"\xff", StoredType::kF32, {1}}},
        std::vector<TensorSpec>{{"__metadata__", StoredType::kF32, {1}}},
        std::vector<TensorSpec>{{"a", StoredType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}},
        std::vector<TensorSpec>{{"a", StoredType::kF32, {-1}}}}) {
    CHECK(absl::IsInvalidArgument(SafetensorsWriter::Create(path, specs, {}).status()));
    CHECK(!std::filesystem::exists(path));
  }
}

TEST_CASE("Unusual but valid headers are accepted", "[safetensors]") {
  const struct {
    const char* header;
    size_t data;
  } cases[] = {
      {"{}", 0},
      {"{}    \n", 0},
      {R"({"__metadata__":{}})", 0},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4},
      // The header may list tensors in any order. An empty tensor may lie at the beginning or the
      // end of any other tensor's data.
      {R"({"a":{"data_offsets":[4,8],"shape":[2],"dtype":"BF16"},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("c":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]},)"
       R"("d":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
       R"("e":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},)"
       R"("f":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]}})",
       8},
  };
  for (const auto& c : cases) {
    INFO(c.header);
    const absl::Status status = OpenBytes(SafetensorsBytes(c.header, c.data));
    INFO(status.message());
    CHECK(status.ok());
  }
}

TEST_CASE("Every rule of the header is checked", "[safetensors]") {
  const std::string a = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const struct {
    std::string header;
    size_t data;
    const char* message;
  } cases[] = {
      {"", 0, "does not start with '{'"},
      {" {}", 0, "does not start with '{'"},
      {"[]", 0, "does not start with '{'"},
      {"{", 0, "expected a string"},
      {"{}x", 0, "unexpected bytes after"},
      {"{ }{}", 0, "unexpected bytes after"},
      {"{\"a\":\xff}", 0, "expected '{'"},
      {"{\"\xff\":{}}", 0, "valid JSON and UTF-8"},
      {"{\"\\ud800\":{}}", 0, "valid JSON and UTF-8"},
      {"{\"a\n\":{}}", 0, "valid JSON and UTF-8"},
      {"{'a':{}}", 0, "expected a string"},
      {"{\"a\" {}}", 0, "expected ':'"},
      {a + ",}", 4, "expected a string"},
      {a, 4, "expected '}'"},
      {R"({"a":5})", 0, "expected '{'"},
      {R"({"a":null})", 0, "expected '{'"},
      {R"({"a":"x"})", 0, "expected '{'"},
      {R"({"a":[]})", 0, "expected '{'"},
      {R"({"a":{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}})", 4, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "expected an integer"},
      {R"({"__metadata__":{"a":{"b":1}}})", 0, "expected a string"},
      {R"({"__metadata__":{"a":1}})", 0, "expected a string"},
      {R"({"__metadata__":{"a":"1","a":"1"}})", 0, "key twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ appears twice"},
      {a + R"(,"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "a appears twice"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
       "dtype appears twice"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 0, "expected dtype, shape and data_offsets"},
      {R"({"a":{}})", 0, "expected dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown field x"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype F31"},
      {R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype f32"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, "expected a string"},
      {R"({"a":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", 4, "expected '['"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
       "tensor a: expected an integer that is not negative"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "expected ']'"},
      {R"({"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,4]}})", 4, "expected ']'"},
      {R"({"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}})", 4, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[1,],"data_offsets":[0,4]}})", 4, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4,
       "too large"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})", 4,
       "too large"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
       "more than 8 dimensions"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
       "too large"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4,
       "too large"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "takes 8 bytes, but data_offsets span 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "before they begin"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "expected ','"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[]}})", 4, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "expected ']'"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
       "expected data at offset 0, got 4"},
      {a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", 12,
       "expected data at offset 4, got 8"},
      {a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8,
       "expected data at offset 4, got 0"},
      {a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]}})", 10,
       "expected data at offset 4, got 2"},
      {a + "}", 3, "data ends at offset 4, but the file holds 3"},
      {a + "}", 5, "tensors take 4 bytes, but the file holds 5"},
      {"{}", 1, "tensors take 0 bytes, but the file holds 1"},
      {R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[9,9]}})", 0,
       "expected data at offset 0, got 9"},
      {std::string(1, '{') + std::string(200000, '['), 0, "expected a string"},
      {"{\"a\":" + std::string(200000, '['), 0, "expected '{'"},
      {"{\"a\":" + std::string(200000, '{'), 0, "expected a string"},
  };
  for (const auto& c : cases) {
    INFO(c.header.substr(0, 200));
    const absl::Status status = OpenBytes(SafetensorsBytes(c.header, c.data));
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(Message(status), ContainsSubstring("model.safetensors"));
    CHECK_THAT(Message(status), ContainsSubstring(c.message));
  }
}

TEST_CASE("Headers above the limits of size and number are rejected", "[safetensors]") {
  const std::string tail = "{}";
  std::string length = "\x01\xe1\xf5\x05";  // 100,000,001
  length.resize(8, '\0');
  CHECK_THAT(Message(OpenBytes(length + tail)),
             ContainsSubstring("exceeds the limit of 100000000"));
  CHECK_THAT(Message(OpenBytes(std::string(8, '\xff') + tail)),
             ContainsSubstring("exceeds the limit of 100000000"));
  length[0] = '\0';  // 100,000,000: longer than the file
  CHECK_THAT(Message(OpenBytes(length + tail)),
             ContainsSubstring("the header ends at byte 100000008"));
  CHECK_THAT(Message(OpenBytes("")), ContainsSubstring("expected at least 8 bytes"));
  CHECK_THAT(Message(OpenBytes("1234567")), ContainsSubstring("expected at least 8 bytes, got 7"));
  CHECK_THAT(
      Message(OpenBytes("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")),
      ContainsSubstring("model.safetensors: is a Git LFS pointer"));

  const auto with_tensors = [](int n) {
    std::string header = "{";
    for (int i = 0; i < n; ++i) {
      absl::StrAppend(&header, i == 0 ? "" : ",", "\"", i,
                      R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
    }
    return SafetensorsBytes(header + "}", 0);
  };
  CHECK(OpenBytes(with_tensors(100000)).ok());
  CHECK_THAT(Message(OpenBytes(with_tensors(100001))),
             ContainsSubstring("more than 100000 tensors"));

  std::string metadata = "{\"__metadata__\":{";
  for (int i = 0; i < 10000; ++i) absl::StrAppend(&metadata, i == 0 ? "" : ",", "\"", i, "\":\"\"");
  CHECK(OpenBytes(SafetensorsBytes(metadata + "}}", 0)).ok());
  CHECK_THAT(Message(OpenBytes(SafetensorsBytes(metadata + ",\"x\":\"\"}}", 0))),
             ContainsSubstring("more than 10000 keys"));
}

TEST_CASE("A file truncated at any byte is an error", "[safetensors]") {
  const std::string whole =
      SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", 16);
  REQUIRE(OpenBytes(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) {
    INFO(n);
    CHECK(absl::IsInvalidArgument(OpenBytes(whole.substr(0, n))));
  }
}

TEST_CASE("A file truncated after it was opened is an error", "[safetensors]") {
  TemporaryDirectory directory;
  const std::string path = directory / "model.safetensors";
  WriteBytes(path,
             SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})",
                              100000));
  auto reader = SafetensorsReader::Open(directory.path());
  REQUIRE(reader.ok());
  std::filesystem::resize_file(path, 4096);
  std::vector<char> bytes(100000);
  const absl::Status status = reader->Read(*reader->Find("a"), 0, 100000, bytes.data());
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(Message(status), ContainsSubstring("the file is truncated at byte 4096"));
}

TEST_CASE("Only regular files are opened, symbolic links only on request", "[safetensors]") {
  TemporaryDirectory directory;
  const std::string path = directory / "model.safetensors";
  CHECK(absl::IsNotFound(SafetensorsReader::Open(directory.path()).status()));
  CHECK(absl::IsNotFound(SafetensorsReader::Open(directory / "nowhere").status()));
  CHECK(absl::IsNotFound(SafetensorsReader::OpenFile(path).status()));

  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK_THAT(Message(SafetensorsReader::Open(directory.path()).status()),
             ContainsSubstring("not a regular file"));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  CHECK_THAT(Message(SafetensorsReader::Open(directory.path()).status()),
             ContainsSubstring("not a regular file"));
  std::filesystem::remove(path);

  WriteBytes(directory / "blob", SafetensorsBytes("{}", 0));
  std::filesystem::create_symlink(directory / "blob", path);
  CHECK_THAT(Message(SafetensorsReader::Open(directory.path()).status()),
             ContainsSubstring("symbolic link"));
  CHECK(SafetensorsReader::Open(directory.path(), true).ok());
  std::filesystem::remove(directory / "blob");
  CHECK(!SafetensorsReader::Open(directory.path(), true).ok());
}

TEST_CASE("The error for a directory of pickle files says how to convert them", "[safetensors]") {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    TemporaryDirectory directory;
    WriteBytes(directory / name, "x");
    const absl::Status status = SafetensorsReader::Open(directory.path()).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(Message(status), ContainsSubstring("python3 -c \"import"));
    CHECK(!absl::StrContains(Message(status), directory.path()));
  }
}

// Two shard files, a and b. Open writes an index file for them and opens the checkpoint.
class Shards {
 public:
  Shards() {
    for (const char* name : {"a", "b"}) {
      WriteBytes(
          directory_ / (std::string(name) + ".safetensors"),
          SafetensorsBytes(
              absl::StrCat("{\"", name, R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})"),
              1));
    }
  }
  std::string operator/(const std::string& name) const { return directory_ / name; }
  absl::StatusOr<SafetensorsReader> Open(const std::string& index, bool follow = false) const {
    WriteBytes(directory_ / "model.safetensors.index.json", index);
    return SafetensorsReader::Open(directory_.path(), follow);
  }

 private:
  TemporaryDirectory directory_;
};

TEST_CASE("Shards are read through their index", "[safetensors]") {
  Shards shards;
  auto reader = shards.Open(
      R"({"metadata":{"total_size":2},"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})");
  REQUIRE(reader.ok());
  REQUIRE(reader->Find("b") != nullptr);
  CHECK(reader->Find("b")->file == 1);
  char byte = 'x';
  REQUIRE(reader->Read(*reader->Find("b"), 0, 1, &byte).ok());
  CHECK(byte == '\0');
}

TEST_CASE("Malicious shard indexes are rejected", "[safetensors]") {
  Shards shards;
  std::filesystem::create_symlink(shards / "b.safetensors", shards / "link.safetensors");
  std::filesystem::create_directory(shards / "sub");
  std::filesystem::copy(shards / "b.safetensors", shards / "sub/b.safetensors");
  const std::string a = R"({"weight_map":{"a":"a.safetensors","b":")";
  const struct {
    std::string index;
    const char* message;
  } cases[] = {
      {a + "../b.safetensors\"}}", "expected a plain name"},
      {a + "..\"}}", "expected a plain name"},
      {a + "/etc/passwd\"}}", "expected a plain name"},
      {a + (shards / "b.safetensors") + "\"}}", "expected a plain name"},
      {a + "sub/b.safetensors\"}}", "expected a plain name"},
      {a + "\"}}", "expected a plain name"},
      {a + R"(b.safetensors\u0000"}})", "expected a plain name"},
      {a + R"(b\u0000.safetensors"}})", "expected a plain name"},
      {a + "config.json\"}}", "expected a plain name"},
      {a + ".safetensors\"}}", "expected a plain name"},
      {a + std::string(5000, 'b') + ".safetensors\"}}", "expected a plain name"},
      {a + "link.safetensors\"}}", "symbolic link"},
      {a + "c.safetensors\"}}", "no such file"},
      {a + "a.safetensors\"}}", "tensor b is not in a.safetensors"},
      {a + "b.safetensors\",\"c\":\"a.safetensors\"}}", "tensor c is not in a.safetensors"},
      {R"({"weight_map":{"a":"b.safetensors","b":"a.safetensors"}})", "is not in"},
      {R"({"weight_map":{"a":"a.safetensors"}})", ""},
      {R"({"weight_map":{"a":7}})", "expected a file name"},
      {R"({"weight_map":{}})", "expected 1 to 1024 shards"},
      {R"({"weight_map":[]})", "expected an object weight_map"},
      {"{}", "expected an object weight_map"},
      {"[]", "expected an object weight_map"},
      {"", "index.json"},
      {R"({"weight_map":{"a":"a.safetensors","a":"b.safetensors"}})", "twice"},
  };
  for (const auto& c : cases) {
    INFO(c.index.substr(0, 200));
    const auto reader = shards.Open(c.index);
    if (*c.message == '\0') {
      CHECK(reader.ok());
      continue;
    }
    CHECK(!reader.ok());
    CHECK_THAT(Message(reader.status()), ContainsSubstring(c.message));
    CHECK(!absl::StrContains(Message(reader.status()), "/etc/passwd: "));
  }
  CHECK(shards.Open(a + "link.safetensors\"}}", true).ok());
}

TEST_CASE("Each tensor must be in the shard that the index names, and only there",
          "[safetensors]") {
  Shards shards;
  std::filesystem::copy(shards / "a.safetensors", shards / "c.safetensors");
  const auto twice = shards.Open(
      R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors","c":"c.safetensors"}})");
  CHECK_THAT(Message(twice.status()), ContainsSubstring("tensor a appears twice, here and in"));
  WriteBytes(shards / "b.safetensors",
             SafetensorsBytes(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                              R"("x":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                              1));
  const auto extra = shards.Open(R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})");
  CHECK_THAT(Message(extra.status()), ContainsSubstring("names 2 tensors, but the shards hold 3"));
}

}  // namespace
}  // namespace quintet
