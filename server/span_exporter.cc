#include "server/span_exporter.h"

#include <zlib.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

using std::chrono::milliseconds;

constexpr int kAttempts = 3;  // per batch
constexpr milliseconds kLongestRetry{10'000};
// Time in which the thread ends once it must not send any more.
constexpr milliseconds kStopTime{300};

// Whether the collector asks for the same request again later, according to OTLP.
bool IsRetryable(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

absl::StatusOr<std::string> Gzip(const std::string& text) {
  constexpr int kGzipWindow = 15 + 16, kMemory = 8;
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindow, kMemory, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    return absl::ResourceExhaustedError("gzip: no memory");
  }
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ended(&stream, deflateEnd);
  std::string compressed(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) return absl::InternalError("gzip failed");
  compressed.resize(stream.total_out);
  return compressed;
}

}  // namespace

struct SpanExporter::State {
  State(Options with, std::unique_ptr<HttpPostClient> to)
      : options(std::move(with)), client(std::move(to)) {}

  const Options options;
  const std::unique_ptr<HttpPostClient> client;
  std::atomic<bool> abort{false};  // the thread must end at once
  std::atomic<int64_t> exported{0}, queue_full{0}, not_accepted{0};

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Span> queue;
  bool stopping = false;  // no more spans come
  bool ended = false;     // the thread has ended
  bool failing = false;   // the last batch was dropped; used by the thread alone

  // The thread: sends batches until Shutdown.
  void Run();
  // Waits for the next batch. Returns an empty one at the end.
  std::vector<Span> TakeBatch();
  // Sends a batch, again if the collector asks for it, and counts its spans.
  void Send(const std::vector<Span>& batch);
  absl::StatusOr<HttpPostClient::Response> SendOnce(const std::string& body);
  // Waits before the next attempt. Returns false if there is no time for one.
  bool WaitToRetry(int attempt, const std::string& retry_after);
  // Logs the first failure after a success, and the first success after a failure.
  void Report(const std::string& failure);
};

std::vector<Span> SpanExporter::State::TakeBatch() {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return stopping || !queue.empty(); });
  changed.wait_for(lock, options.delay,
                   [&] { return stopping || queue.size() >= options.max_batch; });
  const size_t size = std::min(queue.size(), options.max_batch);
  std::vector<Span> batch;
  batch.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    batch.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  return batch;
}

absl::StatusOr<HttpPostClient::Response> SpanExporter::State::SendOnce(const std::string& body) {
  HttpPostClient::Headers headers = {{"Content-Type", "application/json"}};
  if (options.gzip) headers.emplace_back("Content-Encoding", "gzip");
  return client->Post(headers, body, options.timeout, abort);
}

bool SpanExporter::State::WaitToRetry(int attempt, const std::string& retry_after) {
  milliseconds wait = options.delay * (1 << attempt);
  if (int seconds = 0; absl::SimpleAtoi(retry_after, &seconds) && seconds >= 0) {
    wait = std::chrono::seconds(std::min<int>(seconds, 3600));
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait_for(lock, std::min(wait, kLongestRetry), [&] { return stopping; });
  return !abort;
}

void SpanExporter::State::Send(const std::vector<Span>& batch) {
  std::string body = OtlpRequest(options.resource, batch);
  if (options.gzip) {
    absl::StatusOr<std::string> compressed = Gzip(body);
    if (!compressed.ok()) throw std::bad_alloc();
    body = *std::move(compressed);
  }
  const auto spans = static_cast<int64_t>(batch.size());
  std::string failure;
  for (int attempt = 0; attempt < kAttempts && !abort; ++attempt) {
    const absl::StatusOr<HttpPostClient::Response> response = SendOnce(body);
    if (response.ok() && response->status >= 200 && response->status < 300) {
      const int64_t rejected = std::min(OtlpRejectedSpans(response->body), spans);
      exported += spans - rejected;
      not_accepted += rejected;
      Report(rejected == 0 ? "" : "it has rejected spans");
      return;
    }
    failure = response.ok() ? absl::StrCat("HTTP status ", response->status)
                            : std::string(response.status().message());
    if (response.ok() && !IsRetryable(response->status)) break;
    if (attempt + 1 == kAttempts) break;
    if (!WaitToRetry(attempt, response.ok() ? response->retry_after : "")) break;
  }
  not_accepted += spans;
  Report(failure);
}

void SpanExporter::State::Report(const std::string& failure) {
  if (failing == !failure.empty()) return;
  failing = !failure.empty();
  if (failing) {
    spdlog::warn("the trace collector {} does not accept spans, which are dropped: {}",
                 options.http.url.HostField(), failure);
  } else {
    spdlog::info("the trace collector {} accepts spans again", options.http.url.HostField());
  }
}

void SpanExporter::State::Run() {
  while (!abort) {
    size_t spans = 0;
    try {
      const std::vector<Span> batch = TakeBatch();
      spans = batch.size();
      if (batch.empty()) break;
      Send(batch);
    } catch (const std::exception&) {  // out of memory
      not_accepted += static_cast<int64_t>(spans);
    }
  }
  std::lock_guard<std::mutex> lock(mutex);
  not_accepted += static_cast<int64_t>(queue.size());
  queue.clear();
  ended = true;
  changed.notify_all();
}

absl::StatusOr<std::unique_ptr<SpanExporter>> SpanExporter::Start(Options options) {
  QT_ASSIGN_OR_RETURN(std::unique_ptr<HttpPostClient> client, HttpPostClient::Create(options.http));
  auto state = std::make_shared<State>(std::move(options), std::move(client));
  std::unique_ptr<SpanExporter> exporter(new SpanExporter(state));
  std::thread([state] { state->Run(); }).detach();
  return exporter;
}

SpanExporter::~SpanExporter() { Shutdown(milliseconds(0)); }

void SpanExporter::Add(std::vector<Span> spans) {
  const auto count = static_cast<int64_t>(spans.size());
  try {
    std::lock_guard<std::mutex> lock(state_->mutex);
    std::deque<Span>& queue = state_->queue;
    if (state_->stopping || queue.size() + spans.size() > state_->options.max_queued) {
      state_->queue_full += count;
      return;
    }
    const size_t before = queue.size();
    try {
      for (Span& span : spans) queue.push_back(std::move(span));
    } catch (const std::bad_alloc&) {
      while (queue.size() > before) queue.pop_back();
      throw;
    }
    // The thread waits for the first span and for a full batch.
    const size_t batch = state_->options.max_batch;
    if (before > 0 && (before >= batch || queue.size() < batch)) return;
  } catch (const std::bad_alloc&) {
    return CountLost(count);
  }
  state_->changed.notify_all();
}

void SpanExporter::Shutdown(milliseconds limit) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  const auto ended = [this] { return state_->ended; };
  if (state_->changed.wait_for(lock, limit, ended)) return;
  state_->abort = true;
  state_->changed.wait_for(lock, kStopTime, ended);
}

int64_t SpanExporter::exported() const { return state_->exported; }
int64_t SpanExporter::dropped_queue_full() const { return state_->queue_full; }
int64_t SpanExporter::dropped_not_accepted() const { return state_->not_accepted; }
void SpanExporter::CountLost(int64_t spans) { state_->queue_full += spans; }

}  // namespace quintet
