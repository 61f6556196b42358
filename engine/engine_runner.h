// Runs a session's engine for callers in the same process. Each call is a stream of inputs and has
// its results in the order of its inputs; all calls share the engine's batches. Worker threads
// tokenize the inputs and convert the results, so that the engine's thread only runs engine steps;
// if a Push has exactly one input, the thread that calls it may do this work instead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/session.h"

namespace quintet {

// One input of a call. EngineRunner calls its functions in any thread, one at a time.
class WorkItem {
 public:
  virtual ~WorkItem() = default;
  // Makes the engine's request, except its sink, which EngineRunner sets.
  virtual absl::StatusOr<Request> Prepare() = 0;
  // Receives the engine's result. Called at most once, and not at all if the item has failed.
  virtual absl::Status Finish(Result result) = 0;

  absl::Status status;  // outcome; valid once the item is finished
};

// New tokens of a streaming request. Later chunks never change them (ResponseSink::OnTokens).
struct TokenChunk {
  int index = 0;  // index of the sequence
  std::vector<int32_t> ids;
  std::string text;
};

// A CallNotifier is told when a call has something to pop. It may serve many calls; a single thread
// can then wait for all of them. Implementations must be thread safe.
class CallNotifier {
 public:
  virtual ~CallNotifier() = default;
  // Called when, of the items that Pop has not returned, the oldest one finishes or gets a chunk of
  // new tokens. Must not block or call the EngineRunner.
  virtual void Ready() = 0;
};

// A call in progress. Callers must not use it from two threads at once; only Cancel is thread safe.
class EngineCall {
 public:
  virtual ~EngineCall() = default;  // cancels unfinished inputs
  // Appends inputs. After Cancel they end CANCELLED, after EngineRunner::Close UNAVAILABLE. If
  // `items` has exactly one input and the call has no notifier, Push itself prepares that input
  // before it returns; otherwise worker threads prepare the inputs later.
  virtual void Push(std::vector<std::unique_ptr<WorkItem>> items) = 0;
  // Waits until one of these holds for the items that Pop has not returned: the first `least` of
  // them (or all, if fewer) are finished; the first has chunks; none is left; the timeout has
  // passed. Moves the first item's chunks to *chunks (null: drops them). Then moves finished items
  // to *items, in the order of Push, up to the first unfinished one. `least` must be at least 1; a
  // large value saves wakeups if only complete results are needed.
  virtual void Pop(int64_t timeout_us, int64_t least, std::vector<std::unique_ptr<WorkItem>>* items,
                   std::vector<TokenChunk>* chunks) = 0;
  // Number of items that have been pushed and that Pop has not returned yet.
  virtual int64_t pending() const = 0;
  virtual void Cancel() = 0;
};

class EngineRunner {
 public:
  // `session` must outlive the EngineRunner. `workers`: number of threads that call
  // WorkItem::Prepare and WorkItem::Finish.
  static std::unique_ptr<EngineRunner> Create(Session* session, int workers);
  virtual ~EngineRunner() = default;  // calls Close

  // Starts a call, which may outlive this object. `notifier` may be null. Thread safe.
  virtual std::unique_ptr<EngineCall> Begin(std::shared_ptr<CallNotifier> notifier) = 0;
  // Ends all threads of this object. Unfinished items get the error UNAVAILABLE. Thread safe.
  virtual void Close() = 0;
};

}  // namespace quintet
