// Plans the memory of a server process before it loads its models: what they hold, the encoder
// caches, gRPC's resource quota and a budget for requests in the making have to fit into
// kPlannedShare of what the process may use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/process_memory.h"

namespace quintet {

// The rest is for what no plan counts: allocator overhead, fragmentation, libraries.
inline constexpr double kPlannedShare = 0.85;

// Host memory that one model takes once it is loaded.
struct ModelHostMemory {
  int64_t weights_bytes = 0;
  int64_t cache_bytes = 0;          // keys and values
  int64_t workspace_bytes = 0;      // forward passes and search
  int64_t loading_bytes = 0;        // held while weights are read, freed afterwards
  int64_t encoder_cache_bytes = 0;  // as configured
};

struct ServerMemoryPlan {
  int64_t request_budget_bytes = 0;          // for all requests in the making and their answers
  int64_t grpc_quota_bytes = 0;              // of grpc::ResourceQuota
  std::vector<int64_t> encoder_cache_bytes;  // of each model: what was configured, or less
  std::string summary;                       // one line for the log
};

// gRPC starts before models are measured, so its quota depends on the limits alone: a sixteenth of
// the smallest, 32 to 256 MiB, and room for at least four messages.
int64_t GrpcQuotaBytes(const ProcessMemory& memory, int64_t max_message_bytes);

// Plans for `models`, none of which is loaded yet: their tokenizers and devices count in
// `memory.*.used_bytes`. The request budget gets what is left, up to a quarter of the limit (at
// least 256 MiB); where less than 64 MiB and eight messages are left, encoder caches shrink first.
// RESOURCE_EXHAUSTED when that does not suffice: the limit, where it was read, every part and what
// to change.
absl::StatusOr<ServerMemoryPlan> PlanServerMemory(const ProcessMemory& memory,
                                                  absl::Span<const ModelHostMemory> models,
                                                  int64_t max_message_bytes);

}  // namespace quintet
