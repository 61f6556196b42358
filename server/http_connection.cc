#include "server/http_connection.h"

namespace quintet {

void PendingExchange::NotifyLocked() {
  if (!notified_) notified_ = notify_();
}

void PendingExchange::Respond(HttpResponse response) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (notify_ == nullptr) return;
  news_.response = std::move(response);
  news_.end = true;
  NotifyLocked();
}

void PendingExchange::Begin(HttpResponse head) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (notify_ == nullptr) return;
  news_.response = std::move(head);
  news_.stream = true;
  NotifyLocked();
}

void PendingExchange::Write(absl::string_view bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (notify_ == nullptr) return;
  news_.bytes.append(bytes.data(), bytes.size());
  NotifyLocked();
}

void PendingExchange::End() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (notify_ == nullptr) return;
  news_.end = true;
  NotifyLocked();
}

void PendingExchange::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (notify_ == nullptr) return;
  news_.aborted = true;
  // Notify again, even if notified_ is set: a connection that is writing does not take other news,
  // but an abort must end the write.
  notified_ = notify_();
}

HttpNews PendingExchange::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  notified_ = false;
  return std::exchange(news_, HttpNews());
}

bool PendingExchange::aborted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return news_.aborted;
}

bool PendingExchange::HasMissedNews() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !notified_ && !news_.empty();
}

void PendingExchange::Detach() {
  std::lock_guard<std::mutex> lock(mutex_);
  notify_ = nullptr;
}

}  // namespace quintet
