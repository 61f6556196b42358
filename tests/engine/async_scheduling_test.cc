#include "tests/engine/async_scheduling.h"

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE(
    "real models choose the same tokens alone and in mixed batches, with and without async "
    "scheduling") {
  constexpr int kRequests = 40;
  ThreadPool pool(2);
  for (const char* folder : kChoosingModels) {
    const std::unique_ptr<Model> model = LoadChoosing(folder, nullptr, &pool);
    const std::vector<Request> requests = RandomChoices(model->config(), kRequests, 12);
    const std::vector<Result> ahead = Choose(model.get(), requests, true);
    const std::vector<Result> in_step = Choose(model.get(), requests, false);
    for (int i = 0; i < kRequests; ++i) {
      INFO(folder << " request " << i);
      CHECK(ChoseAlike(ahead[i], in_step[i], 0.0f));
      CHECK(ChoseAlike(ahead[i], Choose(model.get(), {requests[i]}, true)[0], 0.0f));
    }
  }
}

TEST_CASE("beams are the same with and without async scheduling, also with cancellations") {
  constexpr int kRequests = 30, kCancelEach = 3;
  ThreadPool pool(1);
  for (const char* folder : kChoosingModels) {
    const std::unique_ptr<Model> model = LoadChoosing(folder, nullptr, &pool);
    const std::vector<Request> requests = RandomBeams(model->config(), kRequests, 22);
    const std::vector<Result> ahead = Choose(model.get(), requests, true);
    const std::vector<Result> in_step = Choose(model.get(), requests, false);
    const std::vector<Result> some = Choose(model.get(), requests, true, kCancelEach);
    for (int i = 0; i < kRequests; ++i) {
      INFO(folder << " request " << i);
      CHECK(ChoseAlike(ahead[i], in_step[i], 0.0f));
      if (i % kCancelEach != 0) CHECK(ChoseAlike(ahead[i], some[i], 0.0f));
    }
  }
}

}  // namespace
}  // namespace quintet
