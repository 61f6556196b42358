#include "server/server_memory.h"

#include <numeric>
#include <span>

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kMessage = 4 * kMib;

ProcessMemory Resident(int64_t limit_mib, int64_t used_mib = 50) {
  ProcessMemory memory;
  memory.resident = {{limit_mib * kMib, "/sys/fs/cgroup/memory.max"}, used_mib * kMib};
  memory.address_space.used_bytes = 400 * kMib;
  return memory;
}

ModelHostMemory ModelOf(int64_t weights_mib) {
  return {.weights_bytes = weights_mib * kMib,
          .cache_bytes = 128 * kMib,
          .workspace_bytes = 20 * kMib,
          .loading_bytes = 40 * kMib,
          .encoder_cache_bytes = 256 * kMib};
}

int64_t Total(const ServerMemoryPlan& plan, std::span<const ModelHostMemory> models) {
  int64_t total = plan.request_budget_bytes + plan.grpc_quota_bytes;
  for (const ModelHostMemory& model : models) {
    total += model.weights_bytes + model.cache_bytes + model.workspace_bytes;
  }
  return std::accumulate(plan.encoder_cache_bytes.begin(), plan.encoder_cache_bytes.end(), total);
}

TEST_CASE("a plan stays within 85 % of the limit, whatever the limit") {
  const ModelHostMemory models[] = {ModelOf(100), ModelOf(10)};
  bool refused = false, reduced = false, whole = false;
  for (int64_t limit = 64; limit < 65536; limit += limit / 8) {
    CAPTURE(limit);
    const ProcessMemory memory = Resident(limit);
    const absl::StatusOr<ServerMemoryPlan> plan = PlanServerMemory(memory, models, kMessage);
    if (!plan.ok()) {
      CHECK(absl::IsResourceExhausted(plan.status()));
      CHECK_FALSE(reduced);  // more memory never turns a plan into a refusal
      refused = true;
      continue;
    }
    CHECK(Total(*plan, models) + memory.resident.used_bytes <=
          static_cast<int64_t>(static_cast<double>(limit * kMib) * kPlannedShare));
    CHECK(plan->request_budget_bytes >= 64 * kMib);
    CHECK(plan->request_budget_bytes <= std::max(limit * kMib / 4, 256 * kMib));
    CHECK(plan->grpc_quota_bytes == GrpcQuotaBytes(memory, kMessage));
    for (const int64_t bytes : plan->encoder_cache_bytes) CHECK(bytes <= 256 * kMib);
    const bool all = plan->encoder_cache_bytes == std::vector<int64_t>(2, 256 * kMib);
    CHECK((all || !whole));
    CHECK((plan->summary.find("reduced") == std::string::npos) == all);
    (all ? whole : reduced) = true;
  }
  CHECK(refused);
  CHECK(reduced);
  CHECK(whole);
}

TEST_CASE("an error names the limit, its source, every part and what to change") {
  const ModelHostMemory model = ModelOf(300);
  const absl::Status status = PlanServerMemory(Resident(512), {&model, 1}, kMessage).status();
  INFO(status);
  for (const char* part :
       {"weights 300", "KV cache 128", "workspace 20", "in use already 50", "512 MiB",
        "/sys/fs/cgroup/memory.max", "--cache-memory", "requests 64"}) {
    CAPTURE(part);
    CHECK(status.message().find(part) != std::string::npos);
  }
}

TEST_CASE("the address space counts stacks and heaps that are mapped later") {
  const ModelHostMemory model = ModelOf(100);
  ProcessMemory memory = Resident(100'000);
  memory.address_space.limit = {1100 * kMib, "RLIMIT_AS (ulimit -v)"};
  const absl::Status status = PlanServerMemory(memory, {&model, 1}, kMessage).status();
  INFO(status);
  CHECK(absl::IsResourceExhausted(status));
  CHECK(status.message().find("RLIMIT_AS") != std::string::npos);
  // 1100 MiB are too little for this model as a limit of the address space (above), but enough as a
  // limit of resident memory: the stacks and heaps of threads reserve address space long before
  // they use memory.
  CHECK(PlanServerMemory(Resident(1100), {&model, 1}, kMessage).ok());
}

TEST_CASE("the request budget holds several of the largest messages") {
  const ModelHostMemory model = ModelOf(1);
  const int64_t message = 512 * kMib;
  CHECK(GrpcQuotaBytes(Resident(1024), message) == 4 * message);
  const auto plan = PlanServerMemory(Resident(16'384), {&model, 1}, message);
  REQUIRE(plan.ok());
  CHECK(plan->request_budget_bytes >= 8 * message);
  CHECK_FALSE(PlanServerMemory(Resident(4096), {&model, 1}, message).ok());
}

TEST_CASE("without limits the plan has defaults") {
  const auto plan = PlanServerMemory(ProcessMemory(), {}, kMessage);
  REQUIRE(plan.ok());
  CHECK(plan->grpc_quota_bytes == 256 * kMib);
  CHECK(plan->request_budget_bytes > 1024 * kMib);
}

}  // namespace
}  // namespace quintet
