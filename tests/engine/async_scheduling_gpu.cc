// Compares the tokens chosen on a GPU with those chosen on the CPU, in f32.
#include <memory>
#include <vector>

#include "tests/catch.h"
#include "tests/engine/async_scheduling.h"
#include "tests/open_gpu.h"

namespace quintet {
namespace {

using MakeRequests = std::vector<Request> (*)(const ModelConfig& config, int count, uint32_t seed);

// Checks that the GPU chooses the same tokens as the CPU, except in a near-tie. On the GPU they
// must not depend on async scheduling, on the batch, or on the cancellation of every
// `cancel_each`-th request (0: none).
void CheckChoices(MakeRequests make, int count, uint32_t seed, int cancel_each) {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(1);
  for (const char* folder : kChoosingModels) {
    const std::unique_ptr<Model> cpu = LoadChoosing(folder, nullptr, &pool);
    const std::unique_ptr<Model> gpu = LoadChoosing(folder, device.get(), &pool);
    const std::vector<Request> requests = make(cpu->config(), count, seed);
    const std::vector<Result> expected = Choose(cpu.get(), requests, false);
    const std::vector<Result> ahead = Choose(gpu.get(), requests, true);
    const std::vector<Result> in_step = Choose(gpu.get(), requests, false);
    std::vector<Result> some;
    if (cancel_each > 0) some = Choose(gpu.get(), requests, true, cancel_each);
    int different = 0;
    for (int i = 0; i < count; ++i) {
      INFO(folder << " request " << i);
      CHECK(ChoseAlike(ahead[i], in_step[i], 0.0f));
      CHECK(ChoseAlike(ahead[i], Choose(gpu.get(), {requests[i]}, true)[0], 0.0f));
      if (cancel_each > 0 && i % cancel_each != 0) CHECK(ChoseAlike(ahead[i], some[i], 0.0f));
      if (!ChoseAlike(ahead[i], expected[i], 1e-4f)) ++different;
    }
    INFO(folder);
    CHECK(different <= 1);  // a near-tie that rounding decides
  }
}

TEST_CASE("GPU and CPU choose the same tokens, alone and in mixed batches") {
  CheckChoices(RandomChoices, /*count=*/60, /*seed=*/11, /*cancel_each=*/0);
}

TEST_CASE(
    "GPU and CPU choose the same beams with async scheduling, alone, in mixed batches and with "
    "cancellations") {
  CheckChoices(RandomBeams, /*count=*/40, /*seed=*/21, /*cancel_each=*/3);
}

// A sampling batch holds the rows of logits of one decoder step. On a GPU, sampling batches of 256
// rows or more are padded. The sampling batches of this test have up to 600 rows, with and without
// logits processors.
TEST_CASE("on a GPU, large padded batches choose the same tokens as the CPU") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  constexpr int64_t kSequences = 640;
  ThreadPool pool(2);
  for (const int32_t beams : {1, 4}) {
    const std::unique_ptr<Model> cpu = LoadChoosing(kChoosingModels[0], nullptr, &pool, kSequences);
    const std::unique_ptr<Model> gpu =
        LoadChoosing(kChoosingModels[0], device.get(), &pool, kSequences);
    const auto count = static_cast<int>(600 / beams);
    std::vector<Request> requests = RandomChoices(cpu->config(), count, 31);
    for (size_t i = 0; i < requests.size(); ++i) {
      DecodingOptions plain;
      plain.prompt = requests[i].decoding.prompt;
      plain.eos_token_ids = cpu->config().eos_ids;
      plain.num_beams = beams;
      plain.max_new_tokens = static_cast<int32_t>(10 + i % 30);
      plain.min_new_tokens = static_cast<int32_t>(i % 3 * 4);
      requests[i].decoding = plain;
    }
    const std::vector<Result> expected = ChooseTogether(cpu.get(), requests, false);
    const std::vector<Result> ahead = ChooseTogether(gpu.get(), requests, true);
    const std::vector<Result> in_step = ChooseTogether(gpu.get(), requests, false);
    int different = 0, apart = 0;
    for (int i = 0; i < count; ++i) {
      if (!ChoseAlike(ahead[i], expected[i], 1e-3f)) ++different;
      if (!ChoseAlike(ahead[i], in_step[i], 1e-3f)) ++apart;
    }
    INFO(beams << " beams");
    CHECK(different <= count / 100);  // near-ties that rounding decides
    CHECK(apart <= count / 100);
  }
}

// Many steps have the same shape. Therefore most steps are launched as one CUDA graph each, which
// contains the decoder step and the sampling that follows it.
TEST_CASE("on a GPU, steps captured as one graph choose the same tokens as steps captured as two") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(1);
  for (const char* folder : kChoosingModels) {
    const std::unique_ptr<Model> model = LoadChoosing(folder, device.get(), &pool);
    for (const bool sampled : {false, true}) {
      Request request = RandomChoices(model->config(), 1, 3)[0];
      request.input.resize(8, 5);
      DecodingOptions plain;
      plain.prompt = request.decoding.prompt;
      plain.max_new_tokens = 100;
      plain.do_sample = sampled;
      plain.seed = 7;
      if (sampled) plain.repetition_penalty = 1.1f;
      request.decoding = plain;
      INFO(folder << (sampled ? ", sampled" : ", greedy"));
      const Result ahead = Choose(model.get(), {request}, true)[0];
      REQUIRE(ahead.sequences.size() == 1);
      CHECK(ahead.sequences[0].token_ids.size() == 100);
      CHECK(ChoseAlike(ahead, Choose(model.get(), {request}, false)[0], 0.0f));
      CHECK(ChoseAlike(ahead, Choose(model.get(), {request, request}, true)[1], 0.0f));
    }
  }
}

}  // namespace
}  // namespace quintet
