// Blocks of a cluster, which begin together and reach each other's shared memory; from sm_90 on.
#pragma once

#include <cstdint>

namespace quintet::cuda {

__device__ __forceinline__ int ClusterRank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ int ClusterSize() {
  int size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
// Orders nothing but barriers shown before it.
__device__ __forceinline__ void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void WaitForCluster() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
// The same place in another block's shared memory.
__device__ __forceinline__ uint32_t InBlock(uint32_t shared, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}
// Arrives at a barrier there.
__device__ __forceinline__ void ArriveInCluster(uint32_t there) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(there) : "memory");
}
}  // namespace quintet::cuda
