// Runs a session's engine for callers in the same process. Each call is a stream of inputs and has
// its results in the order of its inputs; all calls share the engine's batch. Tokenizing and
// converting results run in worker threads, or in the caller's thread for one input at a time, so
// that the engine's thread only runs engine steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/session.h"

namespace quintet {

// One input of a call. The runner calls its functions in any thread, one at a time.
class WorkItem {
 public:
  virtual ~WorkItem() = default;
  // Makes the engine's request; the runner sets its sink.
  virtual absl::StatusOr<Request> Prepare() = 0;
  // Takes the result; called at most once.
  virtual absl::Status Finish(Result result) = 0;

  absl::Status status;  // of the finished item
};

// New tokens of a streaming request. They do not change any more (ResponseSink::OnTokens).
struct TokenChunk {
  int index = 0;  // of the sequence
  std::vector<int32_t> ids;
  std::string text;
};

// Collects the calls that have something to take, for one thread that serves many of them. Thread
// safe.
class CallNotifier {
 public:
  virtual ~CallNotifier() = default;
  // Called when the first unfinished item of a call finishes, or when a chunk arrives. Must not
  // block or call the runner.
  virtual void Ready() = 0;
};

// A call in progress. One thread at a time uses it, except Cancel, which any thread may call.
class EngineCall {
 public:
  virtual ~EngineCall() = default;  // cancels what is unfinished
  // Appends inputs. After Cancel or EngineRunner::Close they end CANCELLED or UNAVAILABLE. Prepares
  // a single input before it returns, unless the call has a notifier.
  virtual void Push(std::vector<std::unique_ptr<WorkItem>> items) = 0;
  // Waits until the first unfinished item is finished, a chunk has arrived or the timeout has
  // passed. Moves chunks of that item to *chunks (null: they are dropped), then the finished items
  // before the first unfinished one, in the order of Push, to *items.
  virtual void Pop(int64_t timeout_us, std::vector<std::unique_ptr<WorkItem>>* items,
                   std::vector<TokenChunk>* chunks) = 0;
  // Items that have been pushed and not popped.
  virtual int64_t pending() const = 0;
  virtual void Cancel() = 0;
};

class EngineRunner {
 public:
  // `session` outlives the runner; `workers`: number of threads that prepare and finish items.
  static std::unique_ptr<EngineRunner> Create(Session* session, int workers);
  virtual ~EngineRunner() = default;  // Close

  // Thread safe. Calls may outlive the runner. `notifier` may be null.
  virtual std::unique_ptr<EngineCall> Begin(std::shared_ptr<CallNotifier> notifier) = 0;
  // Ends all threads. Unfinished items end UNAVAILABLE. Thread safe.
  virtual void Close() = 0;
  virtual EngineCounters counters() const = 0;
};

}  // namespace quintet
