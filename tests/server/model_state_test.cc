// Tests of the state machine of a model: each transition, and invariants over random traces of
// events.
#include "server/model_state.h"

#include <random>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("A model is loaded, replaced and unloaded", "[model_state]") {
  ModelLifecycle model;
  CHECK(model.state() == ModelState::kUnloaded);
  CHECK_FALSE(model.accepts());
  REQUIRE(model.BeginLoad().ok());
  CHECK_FALSE(model.accepts());
  model.Loaded();
  CHECK(model.version() == 1);
  CHECK(model.accepts());
  REQUIRE(model.BeginReplace().ok());
  CHECK(model.version() == 1);
  CHECK(model.accepts());
  model.Loaded();
  CHECK(model.state() == ModelState::kServing);
  CHECK(model.version() == 2);
  CHECK(model.retired() == 1);
  REQUIRE(model.BeginUnload().ok());
  CHECK(model.state() == ModelState::kDraining);
  CHECK_FALSE(model.accepts());
  model.Freed();
  CHECK(model.state() == ModelState::kDraining);
  model.Freed();
  CHECK(model.state() == ModelState::kUnloaded);
  CHECK(model.last_version() == 2);
}

TEST_CASE("A replacement that fails changes nothing", "[model_state]") {
  ModelLifecycle model;
  REQUIRE(model.BeginLoad().ok());
  model.Loaded();
  REQUIRE(model.BeginReplace().ok());
  model.LoadFailed();
  CHECK(model.state() == ModelState::kServing);
  CHECK(model.version() == 1);
  CHECK(model.retired() == 0);
}

TEST_CASE("Calls wait while a model is drained for its replacement", "[model_state]") {
  ModelLifecycle model;
  REQUIRE(model.BeginLoad().ok());
  model.Loaded();
  REQUIRE(model.BeginReplace().ok());
  model.BeginDrain();
  CHECK(model.state() == ModelState::kDraining);
  CHECK(model.version() == 0);
  CHECK(model.accepts());
  model.Freed();
  CHECK(model.state() == ModelState::kLoading);
  CHECK(model.calls_wait());
  SECTION("it is loaded") {
    model.Loaded();
    CHECK(model.version() == 2);
    CHECK_FALSE(model.calls_wait());
  }
  SECTION("it cannot be loaded") {
    model.LoadFailed();
    CHECK(model.state() == ModelState::kFailed);
    CHECK_FALSE(model.accepts());
  }
}

TEST_CASE("An idle model accepts calls, which load it", "[model_state]") {
  ModelLifecycle model;
  REQUIRE(model.BeginLoad().ok());
  model.Loaded();
  REQUIRE(model.GoIdle().ok());
  CHECK(model.state() == ModelState::kIdle);
  CHECK(model.accepts());
  REQUIRE(model.Demand().ok());
  CHECK(model.state() == ModelState::kLoading);
  CHECK(model.calls_wait());
  CHECK(absl::IsAborted(model.Demand()));
  model.Freed();  // the version that became idle
  CHECK(model.state() == ModelState::kLoading);
  model.Loaded();
  CHECK(model.version() == 2);
}

// The values that the public getters of a ModelLifecycle return.
struct Observed {
  explicit Observed(const ModelLifecycle& model)
      : state(model.state()),
        version(model.version()),
        last(model.last_version()),
        retired(model.retired()),
        waits(model.calls_wait()) {}
  bool operator==(const Observed&) const = default;

  ModelState state;
  uint64_t version, last;
  int64_t retired;
  bool waits;
};

bool IsOneOf(ModelState state, std::vector<ModelState> states) {
  for (const ModelState one : states) {
    if (state == one) return true;
  }
  return false;
}

void CheckInvariants(const ModelLifecycle& model) {
  const ModelState state = model.state();
  using S = ModelState;
  // A version serves exactly in these states.
  CHECK((model.version() != 0) == IsOneOf(state, {S::kServing, S::kReplacing}));
  CHECK(model.busy() == IsOneOf(state, {S::kLoading, S::kReplacing, S::kDraining}));
  CHECK(model.accepts() == (model.version() != 0 || model.calls_wait()));
  // Calls wait only for a load, which is in progress, follows the draining, or is started by the
  // next call.
  if (model.calls_wait()) CHECK(IsOneOf(state, {S::kLoading, S::kDraining, S::kIdle}));
  if (state == S::kIdle) CHECK(model.calls_wait());
  CHECK(model.version() <= model.last_version());
  CHECK(model.retired() >= 0);
  // Every version that was loaded either has been freed, is retired, or serves.
  CHECK(model.retired() + (model.version() != 0 ? 1 : 0) <=
        static_cast<int64_t>(model.last_version()));
  if (state == S::kDraining) CHECK(model.retired() > 0);
}

TEST_CASE("Invariants hold over random traces", "[model_state]") {
  std::mt19937_64 random(20261128);
  std::vector<int64_t> seen(7, 0);
  for (int trace = 0; trace < 500; ++trace) {
    ModelLifecycle model;
    int64_t freed = 0;
    for (int step = 0; step < 60; ++step) {
      const Observed before(model);
      absl::Status status;
      switch (random() % 9) {
        case 0:
          status = model.BeginLoad();
          break;
        case 1:
          status = model.BeginReplace();
          break;
        case 2:
          status = model.BeginUnload();
          break;
        case 3:
          status = model.Demand();
          break;
        case 4:
          status = model.GoIdle();
          break;
        case 5:
          if (model.state() == ModelState::kReplacing) model.BeginDrain();
          break;
        case 6:
          if (IsOneOf(model.state(), {ModelState::kLoading, ModelState::kReplacing})) {
            model.Loaded();
            CHECK(model.version() == before.last + 1);  // versions are consecutive
          }
          break;
        case 7:
          if (IsOneOf(model.state(), {ModelState::kLoading, ModelState::kReplacing})) {
            model.LoadFailed();
            CHECK(model.version() == before.version);
          }
          break;
        case 8:
          if (model.retired() > 0) {
            model.Freed();
            ++freed;
          }
          break;
      }
      INFO("state " << ModelStateName(before.state) << " -> " << ModelStateName(model.state()));
      if (!status.ok()) {
        CHECK(Observed(model) == before);  // a refused event changes nothing
        const bool busy = IsOneOf(
            before.state, {ModelState::kLoading, ModelState::kReplacing, ModelState::kDraining});
        CHECK(absl::IsAborted(status) == busy);
      }
      CheckInvariants(model);
      CHECK(static_cast<int64_t>(model.last_version()) ==
            freed + model.retired() + (model.version() != 0 ? 1 : 0));
      ++seen[static_cast<size_t>(model.state())];
    }
  }
  for (const int64_t count : seen) CHECK(count > 250);  // every state was reached
}

TEST_CASE("From every state a model can serve again", "[model_state]") {
  std::mt19937_64 random(7);
  for (int trace = 0; trace < 500; ++trace) {
    ModelLifecycle model;
    for (int step = 0; step < 30; ++step) {
      switch (random() % 5) {
        case 0:
          (void)model.BeginLoad();
          break;
        case 1:
          (void)model.BeginUnload();
          break;
        case 2:
          (void)model.GoIdle();
          break;
        case 3:
          if (model.BeginReplace().ok() && random() % 2 == 0) model.BeginDrain();
          break;
        case 4:
          if (model.state() == ModelState::kLoading) model.Loaded();
          break;
      }
    }
    // Until a version serves, repeat: end the draining or load in progress, or begin a load.
    for (int step = 0; step < 200 && model.version() == 0; ++step) {
      if (model.retired() > 0) model.Freed();
      if (model.state() == ModelState::kLoading) model.Loaded();
      if (!model.busy() && model.version() == 0) REQUIRE(model.BeginLoad().ok());
    }
    CHECK(model.version() != 0);
  }
}

}  // namespace
}  // namespace quintet
