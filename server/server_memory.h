// Plans the host memory of a server process before it loads its models. The models, the encoder
// caches, the resource quota of gRPC and the request budget must fit into kPlannedShare of the
// memory limit of the process.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/process_memory.h"

namespace quintet {

// Share of the memory limit of the process that the plan may use. The remaining 15 % are for
// allocator overhead, fragmentation and libraries, which the plan does not count.
inline constexpr double kPlannedShare = 0.85;

// Numbers of bytes of host memory that one loaded model takes.
struct ModelHostMemory {
  int64_t weights_bytes = 0;
  int64_t cache_bytes = 0;          // KV cache
  int64_t workspace_bytes = 0;      // forward passes and search
  int64_t loading_bytes = 0;        // used only while the weights are read, then freed
  int64_t encoder_cache_bytes = 0;  // configured size of the encoder cache
};

struct ServerMemoryPlan {
  int64_t request_budget_bytes = 0;          // limit of MemoryBudget: requests and responses
  int64_t grpc_quota_bytes = 0;              // size of grpc::ResourceQuota
  std::vector<int64_t> encoder_cache_bytes;  // per model; at most the configured size
  std::string summary;                       // one line for the log
};

// Returns the resource quota of gRPC in bytes: 1/16 of the smallest memory limit, clamped to [32
// MiB, 256 MiB], but at least 4 * max_message_bytes. gRPC starts before the models are measured, so
// the quota depends only on the limits.
int64_t GrpcQuotaBytes(const ProcessMemory& memory, int64_t max_message_bytes);

// Plans the host memory for `models`, whose weights are not loaded yet. Their tokenizers and
// devices are already part of the used_bytes in `memory`. The request budget gets all memory that
// the other parts leave, but at most max(256 MiB, a quarter of the memory limit). It needs at least
// max(64 MiB, 8 * max_message_bytes); if less is left, the encoder caches are reduced. Returns
// RESOURCE_EXHAUSTED if the plan does not fit even without encoder caches. The message names the
// limit, its source, every part and what to change.
absl::StatusOr<ServerMemoryPlan> PlanServerMemory(const ProcessMemory& memory,
                                                  std::span<const ModelHostMemory> models,
                                                  int64_t max_message_bytes);

}  // namespace quintet
