#include "server/server_memory.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"

namespace quintet {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kLeastRequestBytes = 64 * kMib, kTightRequestBytes = 256 * kMib;
constexpr int64_t kLeastGrpcBytes = 32 * kMib, kMostGrpcBytes = 256 * kMib;
// Address space that the process maps later but does not fill: stacks of 64 threads (2 MiB each),
// two glibc heaps (64 MiB each; tools/serve.cc sets both sizes), and the unused end of a slab of
// weights (128 MiB; kernels/runtime/buffer.cc).
constexpr int64_t kLaterMappingBytes = (64 * 2 + 2 * 64 + 128) * kMib;

int64_t Planned(const MemoryLimit& limit) {
  return limit.bytes == MemoryLimit::kNone
             ? MemoryLimit::kNone
             : static_cast<int64_t>(static_cast<double>(limit.bytes) * kPlannedShare);
}

std::string Mib(int64_t bytes) { return absl::StrCat((bytes + kMib - 1) / kMib); }

// The parts of the memory plan, in bytes. `loading` is memory needed only while a model is loaded:
// the largest loading_bytes of any model, not the sum, because models are loaded one after the
// other.
struct Parts {
  int64_t used = 0, later = 0, weights = 0, cache = 0, workspace = 0, loading = 0,
          encoder_cache = 0, grpc = 0, requests = 0;

  // The sum of all parts, except that only the larger of `loading` and `requests` counts: the
  // memory for loading is freed before requests need their full budget.
  int64_t total() const {
    return used + later + weights + cache + workspace + encoder_cache + grpc +
           std::max(loading, requests);
  }
  std::string Describe() const {
    return absl::StrCat("in use already ", Mib(used),
                        later == 0 ? "" : absl::StrCat(", stacks and heaps ", Mib(later)),
                        ", weights ", Mib(weights), ", KV cache ", Mib(cache), ", workspace ",
                        Mib(workspace), ", encoder caches ", Mib(encoder_cache), ", gRPC ",
                        Mib(grpc), ", requests ", Mib(requests), ", while loading ", Mib(loading));
  }
};

Parts Sum(std::span<const ModelHostMemory> models) {
  Parts parts;
  for (const ModelHostMemory& model : models) {
    parts.weights += model.weights_bytes;
    parts.cache += model.cache_bytes;
    parts.workspace += model.workspace_bytes;
    parts.loading = std::max(parts.loading, model.loading_bytes);
    parts.encoder_cache += model.encoder_cache_bytes;
  }
  return parts;
}

// A memory limit of the process (on resident memory or on address space), and the bytes that
// already count against it. Of these two limits, Tightest returns the one that leaves fewer bytes
// for the plan.
struct Bound {
  const MemoryLimit* limit = nullptr;
  int64_t used = 0;
  int64_t later = 0;  // mapped later, independent of the plan
};

Bound Tightest(const ProcessMemory& memory) {
  const Bound resident{&memory.resident.limit, memory.resident.used_bytes, 0};
  const Bound mappings{&memory.address_space.limit, memory.address_space.used_bytes,
                       kLaterMappingBytes};
  const auto room = [](const Bound& bound) {
    return Planned(*bound.limit) - bound.used - bound.later;
  };
  return room(mappings) < room(resident) ? mappings : resident;
}

std::string Of(const MemoryLimit& limit) {
  if (limit.bytes == MemoryLimit::kNone) return "no limit";
  return absl::StrCat(Mib(Planned(limit)), " MiB, 85 % of ", Mib(limit.bytes), " MiB (",
                      limit.source, ")");
}

}  // namespace

int64_t GrpcQuotaBytes(const ProcessMemory& memory, int64_t max_message_bytes) {
  const int64_t limit = std::min(memory.resident.limit.bytes, memory.address_space.limit.bytes);
  return std::max(std::clamp(limit / 16, kLeastGrpcBytes, kMostGrpcBytes), 4 * max_message_bytes);
}

absl::StatusOr<ServerMemoryPlan> PlanServerMemory(const ProcessMemory& memory,
                                                  std::span<const ModelHostMemory> models,
                                                  int64_t max_message_bytes) {
  const Bound bound = Tightest(memory);
  const int64_t least_requests = std::max(kLeastRequestBytes, 8 * max_message_bytes);
  Parts parts = Sum(models);
  const int64_t configured_cache = parts.encoder_cache;
  parts.used = bound.used;
  parts.later = bound.later;
  parts.grpc = GrpcQuotaBytes(memory, max_message_bytes);
  parts.requests = least_requests;
  const int64_t planned = Planned(*bound.limit);
  const int64_t over = parts.total() - planned;
  parts.encoder_cache = std::max<int64_t>(0, configured_cache - std::max<int64_t>(0, over));
  if (parts.total() > planned) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the server needs ", Mib(parts.total()), " MiB (", parts.Describe(), "), there are ",
        Of(*bound.limit),
        ". Raise that limit, lower --cache-memory, --max-batch-tokens or --max-message-bytes, "
        "choose a smaller --dtype or serve fewer models"));
  }
  const int64_t most_requests = std::max(bound.limit->bytes / 4, kTightRequestBytes);
  parts.requests = 0;
  const int64_t left = planned - (parts.total() - parts.loading);
  parts.requests = std::clamp(left, least_requests, std::max(most_requests, least_requests));

  ServerMemoryPlan plan;
  plan.request_budget_bytes = parts.requests;
  plan.grpc_quota_bytes = parts.grpc;
  for (const ModelHostMemory& model : models) {
    const double share = configured_cache == 0 ? 0.0
                                               : static_cast<double>(parts.encoder_cache) /
                                                     static_cast<double>(configured_cache);
    plan.encoder_cache_bytes.push_back(
        parts.encoder_cache == configured_cache
            ? model.encoder_cache_bytes
            : static_cast<int64_t>(static_cast<double>(model.encoder_cache_bytes) * share));
  }
  plan.summary = absl::StrCat("memory plan, MiB: ", parts.Describe(), "; total ",
                              Mib(parts.total()), " of ", Of(*bound.limit));
  if (parts.encoder_cache < configured_cache) {
    absl::StrAppend(&plan.summary, "; encoder caches reduced from ", Mib(configured_cache),
                    " as configured");
  }
  return plan;
}

}  // namespace quintet
