// Tests how requests end when the GPU runs out of memory or fails while they run. A separate
// program, because after a fault its process cannot use the GPU any more.
#include <memory>
#include <optional>

#include "engine/engine.h"
#include "tests/catch.h"
#include "tests/engine/illegal_access_gpu.h"

namespace quintet {
namespace {

constexpr char kModel[] = QUINTET_SOURCE_DIR "/deploy/models/g2p";

// Opens the first GPU. If there is none, prints a warning that begins with "skipped" and returns
// null; ctest then counts the test as skipped.
std::unique_ptr<Device> OpenGpu() {
  auto device = Device::Open(0);
  if (device.ok()) return *std::move(device);
  WARN("skipped: " << device.status().message());
  return nullptr;
}

absl::StatusOr<std::unique_ptr<Model>> Load(Device* device, int64_t cache_pages, ThreadPool* pool) {
  LoadOptions options;
  options.device = device;
  options.weights = WeightType::kBF16;
  options.limits.max_step_sequences = 2;
  options.limits.cache_pages = cache_pages;
  return Model::Load(kModel, options, pool);
}

class StatusSink : public ResponseSink {
 public:
  void OnDone(absl::StatusOr<Result> result) override { status = result.status(); }
  std::optional<absl::Status> status;
};

std::shared_ptr<StatusSink> Submit(Engine* engine, int32_t new_tokens) {
  auto sink = std::make_shared<StatusSink>();
  Request request;
  request.input = {5, 6, 7, 8, 1};
  request.decoding.max_new_tokens = new_tokens;
  request.decoding.prompt = {0};  // no eos: exactly max_new_tokens tokens
  request.sink = sink;
  const absl::Status status = engine->Submit(std::move(request)).status();
  if (!status.ok()) sink->status = status;
  return sink;
}

TEST_CASE(
    "a model that does not fit the GPU is refused, and a smaller configuration loads afterwards") {
  const std::unique_ptr<Device> device = OpenGpu();
  if (device == nullptr) return;
  ThreadPool pool(1);
  const auto refused = Load(device.get(), int64_t{1} << 26, &pool);
  INFO(refused.status());
  CHECK(absl::IsResourceExhausted(refused.status()));
  CHECK(absl::IsResourceExhausted(device->Allocate(int64_t{1} << 50).status()));
  CHECK(device->Synchronize().ok());
  CHECK(Load(device.get(), 64, &pool).ok());
}

TEST_CASE("a fault ends running requests INTERNAL, queued and later ones UNAVAILABLE") {
  const std::unique_ptr<Device> device = OpenGpu();
  if (device == nullptr) return;
  ThreadPool pool(1);
  auto model = Load(device.get(), 64, &pool);
  INFO(model.status());
  REQUIRE(model.ok());
  EngineLimits limits;
  limits.max_running_sequences = 2;
  auto engine = Engine::Create(model->get(), nullptr, limits);
  REQUIRE(engine.ok());

  const int64_t allocations = device->allocations();
  const auto done = Submit(engine->get(), 60);
  for (int i = 0; i < 100 && (*engine)->Step(); ++i) {
  }
  REQUIRE(done->status.has_value());
  CHECK(done->status->ok());
  CHECK(device->allocations() == allocations);

  const auto first = Submit(engine->get(), 60), second = Submit(engine->get(), 60);
  const auto waiting = Submit(engine->get(), 60);
  for (int i = 0; i < 3; ++i) (*engine)->Step();
  CHECK_FALSE(first->status.has_value());
  CHECK((*engine)->status().ok());
  QueueIllegalAccess(device->queue());
  for (int i = 0; i < 3; ++i) (*engine)->Step();

  REQUIRE(first->status.has_value());
  REQUIRE(second->status.has_value());
  REQUIRE(waiting->status.has_value());
  INFO(*first->status);
  CHECK(absl::IsInternal(*first->status));
  CHECK(absl::IsInternal(*second->status));
  CHECK(absl::IsUnavailable(*waiting->status));
  CHECK_FALSE((*engine)->status().ok());
  CHECK(absl::IsUnavailable(*Submit(engine->get(), 1)->status));
  // The device keeps reporting its first error.
  CHECK(absl::IsInternal(device->Synchronize()));
  CHECK(device->Synchronize() == device->status());
  CHECK_FALSE((*engine)->Step());
}

}  // namespace
}  // namespace quintet
