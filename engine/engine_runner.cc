#include "engine/engine_runner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "kernels/base/out_of_memory.h"
#include "kernels/runtime/cores.h"

namespace quintet {
namespace {

absl::Status Cancelled() { return absl::CancelledError("the call was cancelled"); }

class Call;

struct Entry {
  std::unique_ptr<WorkItem> item;
  std::weak_ptr<Call> call;
  Request request;  // valid between Prepare and Submit
  Result result;    // valid from the engine's OnDone until Finish
  // Whether the item is prepared and finished by the threads that call Push and Pop, and not by a
  // worker thread.
  bool by_caller = false;
  // The members below are guarded by Shared::mutex.
  std::vector<TokenChunk> chunks;
  Engine* engine = nullptr;  // valid, as is the id, if `submitted`
  RequestId id = 0;
  bool submitted = false, cancelled = false, done = false;
  // True if EngineRunner has ended `item` early, with an error. When the engine's destructor later
  // ends the request, the sink must then not touch `item`: Pop may already have returned it.
  bool abandoned = false;
};
using EntryPtr = std::shared_ptr<Entry>;

void Prepare(Entry* entry) {
  if (!entry->item->status.ok()) return;
  entry->item->status = CatchOutOfMemory([entry]() -> absl::Status {
    absl::StatusOr<Request> request = entry->item->Prepare();
    if (request.ok()) entry->request = *std::move(request);
    return request.status();
  });
}

void Finish(Entry* entry) {
  if (!entry->item->status.ok()) return;
  entry->item->status =
      CatchOutOfMemory([entry] { return entry->item->Finish(std::move(entry->result)); });
}

// State that an EngineRunner and its Call objects share; it lives as long as any of them.
struct Shared {
  std::mutex mutex;
  std::condition_variable wake_engines, wake_workers;
  std::deque<EntryPtr> to_prepare, to_submit, to_finish;
  std::set<Call*> calls;
  int64_t in_flight = 0;  // requests in all engines
  bool stopped = false;
  absl::Status stop_status = absl::UnavailableError("the model has been closed");
};

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<Shared> shared, std::shared_ptr<CallNotifier> notifier)
      : shared_(std::move(shared)), notifier_(std::move(notifier)) {}

  void Open() {
    const std::lock_guard lock(shared_->mutex);
    shared_->calls.insert(this);
  }
  void Abandon() {
    Cancel();
    const std::lock_guard lock(shared_->mutex);
    shared_->calls.erase(this);
  }

  // If Push gets exactly one input, the calling thread itself prepares and finishes it, because it
  // waits for the result anyway: a worker would cost two thread switches. In a call with a notifier
  // workers do it, because Push and Pop must not block there.
  void Push(std::vector<std::unique_ptr<WorkItem>> items) {
    const bool by_caller = items.size() == 1 && notifier_ == nullptr && !Ended();
    std::vector<EntryPtr> entries;
    for (std::unique_ptr<WorkItem>& item : items) {
      entries.push_back(std::make_shared<Entry>());
      entries.back()->item = std::move(item);
      entries.back()->call = weak_from_this();
      entries.back()->by_caller = by_caller;
    }
    if (by_caller) Prepare(entries[0].get());
    {
      const std::lock_guard lock(shared_->mutex);
      for (EntryPtr& entry : entries) Add(std::move(entry));
    }
    if (by_caller) {
      shared_->wake_engines.notify_all();
    } else {
      shared_->wake_workers.notify_all();
    }
  }

  void Pop(int64_t timeout_us, int64_t least, std::vector<std::unique_ptr<WorkItem>>* items,
           std::vector<TokenChunk>* chunks) {
    std::unique_lock lock(shared_->mutex);
    wanted_ = std::min(static_cast<size_t>(least), entries_.size());
    wake_.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return Ready(); });
    wanted_ = 1;
    if (entries_.empty()) return;
    std::vector<EntryPtr> done;
    if (chunks != nullptr) {
      std::vector<TokenChunk>& arrived = entries_.front()->chunks;
      chunks->insert(chunks->end(), std::make_move_iterator(arrived.begin()),
                     std::make_move_iterator(arrived.end()));
    }
    entries_.front()->chunks.clear();
    for (; !entries_.empty() && entries_.front()->done; entries_.pop_front()) {
      done.push_back(std::move(entries_.front()));
    }
    ready_ = 0;
    lock.unlock();
    for (const EntryPtr& entry : done) {
      if (entry->by_caller) Finish(entry.get());
      items->push_back(std::move(entry->item));
    }
  }

  int64_t pending() const {
    const std::lock_guard lock(shared_->mutex);
    return static_cast<int64_t>(entries_.size());
  }

  void Cancel() {
    const std::lock_guard lock(shared_->mutex);
    cancelled_ = true;
    for (const EntryPtr& entry : entries_) {
      if (entry->done || entry->cancelled) continue;
      entry->cancelled = true;
      if (entry->submitted && !shared_->stopped) entry->engine->Cancel(entry->id);
    }
  }

  // Wakes the thread that waits in Pop, and calls the notifier. Must be called when Pop has
  // something to return, that is, when one of the functions below has returned true; best without
  // holding Shared::mutex, because the woken thread needs it.
  void Notify() {
    wake_.notify_all();
    if (notifier_ != nullptr) notifier_->Ready();
  }

  // The functions below are called with Shared::mutex held.
  [[nodiscard]] bool MarkDone(Entry* entry) {
    entry->done = true;
    const size_t before = ready_;
    while (ready_ < entries_.size() && entries_[ready_]->done) ++ready_;
    return before < wanted_ && ready_ >= wanted_;
  }
  [[nodiscard]] bool AddChunk(Entry* entry, TokenChunk chunk) {
    entry->chunks.push_back(std::move(chunk));
    return !entries_.empty() && entries_.front().get() == entry;
  }
  void FailUnfinished(const absl::Status& status) {
    for (const EntryPtr& entry : entries_) {
      if (entry->done) continue;
      entry->item->status = status;
      entry->abandoned = true;
      entry->done = true;
    }
    ready_ = entries_.size();
    Notify();
  }

 private:
  bool Ended() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->stopped || cancelled_;
  }
  bool Ready() const { return ready_ >= wanted_ || !entries_.front()->chunks.empty(); }
  // Appends a new entry (an input with its state) to the call. Queues it for a worker to prepare
  // or, if the caller has already prepared it, for the engine. If the entry has failed, or the call
  // or the EngineRunner has ended, marks it done instead. Called with Shared::mutex held.
  void Add(EntryPtr entry) {
    entries_.push_back(entry);
    absl::Status& status = entry->item->status;
    if (shared_->stopped || cancelled_) status = cancelled_ ? Cancelled() : shared_->stop_status;
    if (!status.ok()) {
      if (MarkDone(entry.get())) Notify();
    } else if (entry->by_caller) {
      shared_->to_submit.push_back(std::move(entry));
    } else {
      shared_->to_prepare.push_back(std::move(entry));
    }
  }

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<CallNotifier> notifier_;
  std::condition_variable wake_;
  std::deque<EntryPtr> entries_;  // in the order of Push
  size_t ready_ = 0;              // length of the longest prefix of entries_ that is done
  size_t wanted_ = 1;             // Pop waits until `ready_` has this value
  bool cancelled_ = false;
};

// The handle that EngineRunner::Begin returns: it refers to one Call, a stream of inputs and their
// results. Destroying the handle cancels the call's unfinished inputs.
class CallHandle : public EngineCall {
 public:
  explicit CallHandle(std::shared_ptr<Call> call) : call_(std::move(call)) { call_->Open(); }
  ~CallHandle() override { call_->Abandon(); }
  void Push(std::vector<std::unique_ptr<WorkItem>> items) override {
    call_->Push(std::move(items));
  }
  void Pop(int64_t timeout_us, int64_t least, std::vector<std::unique_ptr<WorkItem>>* items,
           std::vector<TokenChunk>* chunks) override {
    call_->Pop(timeout_us, least, items, chunks);
  }
  int64_t pending() const override { return call_->pending(); }
  void Cancel() override { call_->Cancel(); }

 private:
  const std::shared_ptr<Call> call_;
};

// Entries that the engine has finished in the current step; an entry is an input of a call, with
// the input's state. Only the engine's thread uses the list, but the sinks share its ownership,
// because the engine may call them after the EngineRunner has ended.
using FinishedEntries = std::vector<EntryPtr>;

class EntrySink : public ResponseSink {
 public:
  EntrySink(EntryPtr entry, std::shared_ptr<Shared> shared,
            std::shared_ptr<FinishedEntries> finished)
      : entry_(std::move(entry)), shared_(std::move(shared)), finished_(std::move(finished)) {}

  void OnTokens(int index, std::span<const int32_t> ids, const std::string& text) override {
    const std::shared_ptr<Call> call = entry_->call.lock();
    if (call == nullptr) return;
    TokenChunk chunk = {.index = index, .ids = {ids.begin(), ids.end()}, .text = text};
    bool ready = false;
    {
      const std::lock_guard lock(shared_->mutex);
      ready = call->AddChunk(entry_.get(), std::move(chunk));
    }
    if (ready) call->Notify();
  }
  void OnDone(absl::StatusOr<Result> result) override {
    if (entry_->abandoned) return;
    entry_->item->status = result.status();
    if (result.ok()) entry_->result = *std::move(result);
    finished_->push_back(std::move(entry_));
  }

 private:
  EntryPtr entry_;
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<FinishedEntries> finished_;
};

class Runner : public EngineRunner {
 public:
  Runner(Session* session, int workers) {
    const std::vector<Session*> sessions = session->all();
    for (Session* const one : sessions) {
      engines_.push_back(std::make_unique<EngineThread>(one));
      EngineThread& engine = *engines_.back();
      engine.load.most = MostRequests(one->model->limits().max_step_sequences, sessions.size());
      engine.finished->reserve(static_cast<size_t>(engine.load.most));
    }
    running_ = usable_ = static_cast<int64_t>(engines_.size());
    for (int i = 0; i < workers; ++i) {
      workers_.emplace_back([this, workers, finish_first = i % 2 == 1] {
        RunWorker(static_cast<size_t>(workers), finish_first);
      });
    }
    for (const auto& engine : engines_) {
      engine->thread = std::thread([this, at = engine.get()] { RunEngine(at); });
    }
  }
  ~Runner() override { Close(); }

  std::unique_ptr<EngineCall> Begin(std::shared_ptr<CallNotifier> notifier) override {
    return std::make_unique<CallHandle>(std::make_shared<Call>(shared_, std::move(notifier)));
  }

  void Close() override {
    const std::lock_guard closing(close_mutex_);
    Stop(absl::OkStatus());
    for (const auto& engine : engines_) {
      if (engine->thread.joinable()) engine->thread.join();
    }
  }

 private:
  // One engine of the session, and the thread that runs it.
  struct EngineThread {
    explicit EngineThread(Session* s) : session(s) {}
    Engine& engine() const { return *session->engine; }

    Session* const session;
    EngineLoad load;  // guarded by Shared::mutex
    const std::shared_ptr<FinishedEntries> finished = std::make_shared<FinishedEntries>();
    std::thread thread;
  };

  // Tells all threads to end. Unfinished inputs then end with the error `status`. An OK `status`
  // says that the model was closed; unfinished inputs then end with UNAVAILABLE.
  void Stop(const absl::Status& status) {
    const std::lock_guard lock(shared_->mutex);
    if (!status.ok()) shared_->stop_status = status;
    shared_->stopped = true;
    shared_->wake_engines.notify_all();
    shared_->wake_workers.notify_all();
  }

  void RunEngine(EngineThread* engine) {
    RunOnCpus(engine->session->cpus);
    const absl::Status status = CatchOutOfMemory([this, engine] {
      std::vector<EntryPtr> batch;
      for (bool busy = false; TakePrepared(engine, busy, &batch);) {
        SubmitAll(engine, batch);
        busy = engine->engine().Step();
        HandOver(engine);
        if (engine->engine().status().ok()) continue;
        while (engine->engine().Step()) HandOver(engine);  // ends what it still has
        HandOver(engine);
        busy = false;
        if (Retire()) break;
      }
      return absl::OkStatus();
    });
    if (!status.ok()) Stop(status);
    if (--running_ > 0) return;
    for (std::thread& worker : workers_) worker.join();
    FailUnfinished();
  }

  // Called when the device of an engine has failed. Returns true if another engine can take the
  // remaining inputs. The last one goes on, so that each input ends with its error.
  bool Retire() {
    const std::lock_guard lock(shared_->mutex);
    if (usable_ == 1) return false;
    --usable_;
    shared_->wake_engines.notify_all();
    return true;
  }

  // Moves to *batch the entries (inputs of calls) whose requests are ready to submit, as many as
  // the engine should take. If there are none and the engine is not busy, waits for one. Returns
  // false after Stop.
  bool TakePrepared(EngineThread* engine, bool busy, std::vector<EntryPtr>* batch) {
    batch->clear();
    std::unique_lock lock(shared_->mutex);
    const auto share = [&] {
      return ShareOfQueue(engine->load, shared_->in_flight,
                          static_cast<int64_t>(shared_->to_submit.size()), usable_);
    };
    shared_->wake_engines.wait(lock, [&] { return busy || shared_->stopped || share() > 0; });
    if (shared_->stopped) return false;
    const int64_t count = std::min(share(), static_cast<int64_t>(shared_->to_submit.size()));
    for (int64_t i = 0; i < count; ++i, shared_->to_submit.pop_front()) {
      batch->push_back(std::move(shared_->to_submit.front()));
    }
    engine->load.own += count;
    shared_->in_flight += count;
    return true;
  }

  void SubmitAll(EngineThread* engine, const std::vector<EntryPtr>& batch) {
    std::vector<std::pair<Entry*, RequestId>> submitted;
    submitted.reserve(batch.size());
    for (const EntryPtr& entry : batch) {
      entry->request.sink = std::make_shared<EntrySink>(entry, shared_, engine->finished);
      absl::StatusOr<RequestId> id = engine->engine().Submit(std::move(entry->request));
      if (id.ok()) {
        submitted.emplace_back(entry.get(), *id);
      } else {
        entry->item->status = id.status();
        engine->finished->push_back(entry);
      }
    }
    if (submitted.empty()) return;
    const std::lock_guard lock(shared_->mutex);
    for (const auto& [entry, id] : submitted) {
      entry->engine = &engine->engine();
      entry->id = id;
      entry->submitted = true;
      if (entry->cancelled) entry->engine->Cancel(id);
    }
  }

  // Passes on the entries that the engine has finished in this step: to the workers or, if the
  // caller finishes the entry itself (by_caller), to the entry's call.
  void HandOver(EngineThread* engine) {
    FinishedEntries& finished = *engine->finished;
    if (finished.empty()) return;
    std::vector<std::shared_ptr<Call>> ready;
    bool for_workers = false;
    {
      const std::lock_guard lock(shared_->mutex);
      engine->load.own -= static_cast<int64_t>(finished.size());
      shared_->in_flight -= static_cast<int64_t>(finished.size());
      for (EntryPtr& entry : finished) {
        if (!entry->by_caller) {
          shared_->to_finish.push_back(std::move(entry));
          for_workers = true;
        } else if (std::shared_ptr<Call> call = entry->call.lock();
                   call != nullptr && call->MarkDone(entry.get())) {
          ready.push_back(std::move(call));
        }
      }
      finished.clear();
    }
    if (for_workers) shared_->wake_workers.notify_all();
    for (const std::shared_ptr<Call>& call : ready) call->Notify();
  }

  // Loop of one worker thread: takes entries from the queues, and prepares or finishes them. If
  // entries of both kinds wait, it finishes entries first if `finish_first`, else prepares first.
  void RunWorker(size_t workers, bool finish_first) {
    constexpr size_t kMostEntries = 32;  // entries that a worker takes at once
    std::vector<EntryPtr> entries;
    std::unique_lock lock(shared_->mutex);
    while (true) {
      shared_->wake_workers.wait(lock, [this] {
        return shared_->stopped || !shared_->to_prepare.empty() || !shared_->to_finish.empty();
      });
      if (shared_->stopped) return;
      const bool finish =
          shared_->to_prepare.empty() || (finish_first && !shared_->to_finish.empty());
      std::deque<EntryPtr>& queue = finish ? shared_->to_finish : shared_->to_prepare;
      const size_t share = (queue.size() + workers - 1) / workers;
      for (size_t i = std::min(std::max<size_t>(share, 1), kMostEntries); i > 0; --i) {
        entries.push_back(std::move(queue.front()));
        queue.pop_front();
        if (entries.back()->cancelled) entries.back()->item->status = Cancelled();
      }
      lock.unlock();
      for (const EntryPtr& entry : entries) finish ? Finish(entry.get()) : Prepare(entry.get());
      lock.lock();
      const bool idle = shared_->to_submit.empty();
      for (EntryPtr& entry : entries) Pass(std::move(entry), finish);
      if (idle && !shared_->to_submit.empty()) shared_->wake_engines.notify_all();
      entries.clear();
    }
  }

  // Passes a prepared entry on to the engine, and a finished or failed one to its call.
  void Pass(EntryPtr entry, bool finished) {
    if (!finished && entry->cancelled) entry->item->status = Cancelled();
    if (!finished && entry->item->status.ok()) {
      shared_->to_submit.push_back(std::move(entry));
      return;
    }
    const std::shared_ptr<Call> call = entry->call.lock();
    if (call != nullptr && call->MarkDone(entry.get())) call->Notify();
  }

  // Ends all unfinished items with an error. Called after the engine's loop and workers ended.
  void FailUnfinished() {
    const std::lock_guard lock(shared_->mutex);
    for (std::deque<EntryPtr>* queue :
         {&shared_->to_prepare, &shared_->to_submit, &shared_->to_finish}) {
      queue->clear();
    }
    for (Call* call : shared_->calls) call->FailUnfinished(shared_->stop_status);
  }

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::mutex close_mutex_;
  std::vector<std::unique_ptr<EngineThread>> engines_;
  std::atomic<int64_t> running_{0};  // engine threads that have not ended
  int64_t usable_ = 0;  // engines whose device has not failed; guarded by Shared::mutex
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<EngineRunner> EngineRunner::Create(Session* session, int workers) {
  return std::make_unique<Runner>(session, workers);
}

}  // namespace quintet
