// A Stream says where ops run: on which backend, with which threads or device queue. One engine owns one; not thread safe.
#pragma once

#include <cstdint>

#include "kernels/thread_pool.h"

namespace quintet {

enum class Backend : uint8_t { kCpu, kCuda };

class Stream {
 public:
  // A CPU stream; `pool` outlives it.
  explicit Stream(ThreadPool* pool) : pool_(pool) {}

  Backend backend() const { return Backend::kCpu; }
  ThreadPool& pool() const { return *pool_; }

  // Matrix products issued so far: what a test counts to see that projections are batched.
  int64_t products() const { return products_; }
  void CountProduct() { ++products_; }

 private:
  ThreadPool* pool_;
  int64_t products_ = 0;
};

}  // namespace quintet
