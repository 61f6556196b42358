// Thread block clusters: CTAs that are scheduled together and can access each other's shared
// memory; sm_90 and newer.
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
// Arrives at the cluster barrier without ordering memory accesses (.relaxed). A thread that has
// initialised mbarriers must call FenceBarrierInit first, so that other CTAs can use the mbarriers
// after the cluster barrier.
__device__ __forceinline__ void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
// Waits until all threads of the cluster have arrived at the cluster barrier.
__device__ __forceinline__ void WaitForCluster() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
// Maps a shared memory address of this CTA to the same offset in CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t InBlock(uint32_t shared, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}
// Arrives at an mbarrier of another CTA of the cluster; `there` is its address as returned by
// InBlock.
__device__ __forceinline__ void ArriveInCluster(uint32_t there) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(there) : "memory");
}
}  // namespace quintet::cuda
