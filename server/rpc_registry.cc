#include "server/rpc_registry.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc.h"

namespace quintet {

RpcRegistry::Registration::~Registration() {
  if (connection_ == nullptr) return;
  std::lock_guard<std::mutex> lock(owner_->mutex_);
  owner_->open_ -= 1;
  if (long_lived_) {
    owner_->long_lived_ -= 1;
    connection_->long_lived -= 1;
  }
}

absl::StatusOr<RpcRegistry::Registration> RpcRegistry::Admit(const std::string& peer,
                                                             bool long_lived) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (open_ >= limits_.open) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many calls are open: ", open_, ", limit ", limits_.open));
  }
  std::weak_ptr<Registration::Connection>& known = connections_[peer];
  std::shared_ptr<Registration::Connection> connection = known.lock();
  if (connection == nullptr) {
    connection = std::make_shared<Registration::Connection>();
    known = connection;
  }
  if (long_lived && long_lived_ >= limits_.long_lived) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "too many streams and watches are open: ", long_lived_, ", limit ", limits_.long_lived));
  }
  if (long_lived && connection->long_lived >= limits_.long_lived_of_connection) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "too many streams and watches are open on this connection: ", connection->long_lived,
        ", limit ", limits_.long_lived_of_connection));
  }
  open_ += 1;
  if (long_lived) {
    long_lived_ += 1;
    connection->long_lived += 1;
  }
  return Registration(this, long_lived, std::move(connection));
}

void RpcRegistry::Add(Rpc* rpc) {
  std::lock_guard<std::mutex> lock(mutex_);
  rpcs_.insert(rpc);
}

void RpcRegistry::Remove(Rpc* rpc) {
  std::lock_guard<std::mutex> lock(mutex_);
  rpcs_.erase(rpc);
}

int64_t RpcRegistry::count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(rpcs_.size());
}

int64_t RpcRegistry::working() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t working = 0;
  for (const Rpc* rpc : rpcs_) working += rpc->working() ? 1 : 0;
  return working;
}

void RpcRegistry::Check(int64_t now_us) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Rpc* rpc : rpcs_) {
    try {
      rpc->Check(now_us, draining_);
    } catch (const std::bad_alloc&) {
      // Out of memory: the next Check retries this RPC.
    }
  }
  std::erase_if(connections_, [](const auto& known) { return known.second.expired(); });
}

void RpcRegistry::AbandonAll() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Rpc* rpc : rpcs_) rpc->Abandon();
}

}  // namespace quintet
