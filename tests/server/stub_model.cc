#include "tests/server/stub_model.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <vector>

namespace quintet {
namespace {

constexpr int32_t kToken = 40;  // the generated token

void Sleep(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

class StubModel : public Model {
 public:
  StubModel(ModelConfig config, const ModelLimits& limits, ThreadPool* pool,
            std::shared_ptr<StubControl> control)
      : Model(std::move(config), limits, Stream(pool)),
        control_(std::move(control)),
        tokens_(static_cast<size_t>(limits.cache_pages * limits.page_size), kToken) {}

  void BeginEncode(const EncodeBatch& batch) override {
    rows_ = static_cast<int64_t>(batch.tokens.size());
    states_.assign(static_cast<size_t>(rows_ * config_.d_model), 0.0f);
    control_->encoded_tokens += rows_;
  }
  bool EncodeSlice(int64_t) override { return true; }
  Tensor EncodedStates() const override {
    return Tensor::F32(states_.data(), {rows_, config_.d_model});
  }
  Tensor EncodedRows(std::span<const int32_t> rows) override {
    return EncodedStates().Rows(0, static_cast<int64_t>(rows.size()));
  }
  void ProjectCross(const Tensor&, int64_t, std::span<const int32_t>,
                    std::span<const int32_t>) override {}

  Tensor Decode(const DecodeBatch& batch) override {
    while (control_->steps == control_->stall_at) Sleep(1000);
    // Simulate a step of control_->step_us by sleeping in short slices. While the process is
    // suspended, the time of a sleep continues to count; a suspension can therefore shorten the
    // step, but at most by one slice.
    constexpr int64_t kSliceUs = 10'000;
    for (int64_t left = control_->step_us; left > 0; left -= kSliceUs) {
      Sleep(std::min(left, kSliceUs));
    }
    ++control_->steps;
    const int64_t wanted = static_cast<int64_t>(batch.output_rows.size());
    decoded_.assign(static_cast<size_t>(wanted * config_.d_model), 0.0f);
    lens_.assign(batch.kv_lens.begin(), batch.kv_lens.end());
    slots_.assign(batch.slots, batch.slots + batch.kv_lens.size() * batch.slots_stride);
    slots_stride_ = batch.slots_stride;
    return Tensor::F32(decoded_.data(), {wanted, config_.d_model});
  }
  TokenHistory history() const override {
    const auto slots = static_cast<int64_t>(tokens_.size());
    return {Tensor::Dense(tokens_.data(), DType::kI32, {slots}), slots_.data(), slots_stride_,
            lens_};
  }
  void Logits(const Tensor& states, const Tensor& logits) override {
    for (int64_t row = 0; row < states.dim[0]; ++row) {
      float* values = logits.f32() + row * logits.stride[0];
      std::fill_n(values, config_.vocab, 0.0f);
      values[kToken] = 100.0f;
    }
  }
  void TargetLogProbs(const Tensor& states, const Tensor&, const Tensor& log_probs, const Tensor&,
                      const Tensor&) override {
    std::fill_n(log_probs.f32(), states.dim[0], 0.0f);
  }
  void Classify(const Tensor&, const Tensor&) override {}

 private:
  const std::shared_ptr<StubControl> control_;
  int64_t rows_ = 0;
  std::vector<float> states_, decoded_;
  std::vector<int32_t> tokens_, slots_, lens_;
  int64_t slots_stride_ = 0;
};

}  // namespace

void UseStub(HostOptions* host, std::shared_ptr<StubControl> control) {
  host->load_model = [control](const std::string& directory, const LoadOptions& options,
                               ThreadPool* pool) -> absl::StatusOr<std::unique_ptr<Model>> {
    Sleep(control->load_us);
    absl::StatusOr<ModelConfig> config = ReadModelConfig(directory);
    if (!config.ok()) return config.status();
    return std::make_unique<StubModel>(*std::move(config), options.limits, pool, control);
  };
}

}  // namespace quintet
