// A failed allocation while loading returns an error. It does not end the process or leak a file.
#include <filesystem>
#include <functional>
#include <string>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/warm_up.h"
#include "kernels/base/out_of_memory.h"
#include "tests/allocation/injection.h"
#include "tests/catch.h"

namespace quintet {
namespace {

constexpr char kRoot[] = QUINTET_SOURCE_DIR;

int64_t OpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

// Calls `load` repeatedly. In each call one allocation fails, `stride` allocations later than in
// the call before, until a call ends before it reaches the allocation that would fail.
void FailEach(int64_t stride, const std::function<absl::Status()>& load) {
  REQUIRE(load().ok());
  const int64_t files = OpenFiles();
  int64_t errors = 0;
  for (int64_t n = 1;; n += stride) {
    CAPTURE(n);
    ArmAllocations(n);
    const absl::Status status = load();
    if (!DisarmAllocations()) {
      CHECK(status.ok());
      break;
    }
    // Loading may succeed in spite of the failed allocation: if a slab (one mapping for many
    // buffers) cannot be mapped, each buffer gets a mapping of its own.
    if (!status.ok()) {
      INFO(status);
      REQUIRE(absl::IsResourceExhausted(status));
      ++errors;
    }
  }
  CHECK(errors > 3);
  CHECK(OpenFiles() == files);
  CHECK(load().ok());
}

TEST_CASE("a failed allocation while a model is loaded is an error") {
  ThreadPool pool(1);
  for (const char* name : {"t5-v1_1", "gpt2", "fat5-fire-32"}) {
    CAPTURE(name);
    const std::string directory = std::string(kRoot) + "/tests/golden/cases/" + name;
    FailEach(1, [&] { return Model::Load(directory, {}, &pool).status(); });
  }
}

TEST_CASE("a failed allocation on a thread of the pool while a model is loaded is an error") {
  ThreadPool pool(3);
  const std::string directory = std::string(kRoot) + "/tests/golden/cases/t5-v1_1";
  FailEach(3, [&] { return Model::Load(directory, {.weights = WeightType::kI8}, &pool).status(); });
}

TEST_CASE("a failed allocation while a model is measured or an engine created is an error") {
  ThreadPool pool(1);
  const std::string directory = std::string(kRoot) + "/tests/golden/cases/t5-v1_1";
  FailEach(1, [&] { return Model::Measure(directory, {}, &pool).status(); });
  const auto model = Model::Load(directory, {}, &pool);
  REQUIRE(model.ok());
  FailEach(1, [&] { return Engine::Create(model->get(), nullptr, {}).status(); });
}

TEST_CASE("a failed allocation while a tokenizer is loaded is an error") {
  const std::string root = kRoot, data = root + "/tests/data/tokenizers/";
  const std::string g2p = root + "/deploy/models/g2p", byt5 = data + "byt5", t5 = data + "t5";
  FailEach(1, [&] { return Tokenizer::Load(g2p).status(); });
  FailEach(1, [&] { return Tokenizer::Load(byt5).status(); });
  FailEach(997, [&] { return Tokenizer::Load(t5).status(); });
}

}  // namespace
}  // namespace quintet
