// A device failure must end encode-only requests too, although they never wait for a decoder step.
// The device is a fake in host memory, and the fake model enqueues no kernels on it.
#include <cstring>
#include <memory>

#include "kernels/runtime/dispatch.h"
#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

class PretendedDevice : public Device {
 public:
  PretendedDevice() { num_sms_ = 1; }
  int64_t free_bytes() const override { return int64_t{1} << 30; }
  void Use() override {}
  absl::StatusOr<Buffer> Allocate(int64_t bytes) override { return Buffer::Allocate(bytes); }
  absl::StatusOr<Buffer> AllocatePinned(int64_t bytes) override { return Buffer::Allocate(bytes); }
  absl::StatusOr<Buffer> AllocateHost(int64_t bytes) override { return Buffer::Allocate(bytes); }
  int64_t CopyH2D(const void*, int64_t) override { return 0; }
  void CopyD2H(void*, int64_t) override {}
  void WaitForH2D(int64_t) override {}
  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void Write(void* device, const void* host, int64_t bytes) override {
    CopyToDevice(device, host, bytes);
  }
  std::unique_ptr<CudaGraph> CaptureGraph(absl::FunctionRef<void()>) override { return nullptr; }
  void LaunchGraph(const CudaGraph&) override {}
  absl::Status Synchronize() override { return status(); }
  void RecordEvent(int) override {}
  absl::Status WaitForEvent(int) override { return status(); }

 protected:
  const void* DevicePtrOf(const void* host) const override { return host; }
};

TEST_CASE("a device failure ends an engine that only encodes or classifies") {
  if (!kCudaBuilt) return;  // such a stream has no ops then
  for (const RequestKind kind : {RequestKind::kEncode, RequestKind::kClassify}) {
    INFO(static_cast<int>(kind));
    ThreadPool pool(1);
    PretendedDevice device;
    FakeOptions options;
    options.device = &device;
    if (kind == RequestKind::kClassify) options.head = Head::kTokenClassification;
    FakeModel model(options, &pool);
    auto engine = Engine::Create(&model, nullptr, {});
    REQUIRE(engine.ok());
    const auto submit = [&] {
      auto sink = std::make_shared<RecordingSink>();
      sink->status = absl::UnknownError("not ended");
      Request request;
      request.kind = kind;
      request.input = {5, 6, 7, 1};
      request.sink = sink;
      const absl::Status status = (*engine)->Submit(std::move(request)).status();
      if (!status.ok()) sink->status = status;
      return sink;
    };

    const auto good = submit();
    RunAll(engine->get());
    CHECK(good->status.ok());
    CHECK((*engine)->status().ok());

    const auto running = submit();
    device.Fail("an illegal address");
    RunAll(engine->get());
    CHECK(absl::IsInternal(running->status));
    // Engine::status() reports the failure, and later requests are rejected with UNAVAILABLE.
    CHECK(absl::IsUnavailable((*engine)->status()));
    CHECK(absl::IsUnavailable(submit()->status));
    CHECK((*engine)->counters().failed == 1);
    CHECK((*engine)->counters().running == 0);
  }
}

}  // namespace
}  // namespace quintet
