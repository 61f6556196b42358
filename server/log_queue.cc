#include "server/log_queue.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "spdlog/details/log_msg.h"
#include "spdlog/pattern_formatter.h"

namespace quintet {

struct LogQueue::State {
  explicit State(const Options& options) : fd(options.fd), max_bytes(options.max_bytes) {}

  std::string Format(const spdlog::details::log_msg& message);
  void Push(std::string text);
  // Writes `text` to `fd`, and waits while `fd` is a full pipe. Returns false if a part was not
  // written.
  bool WriteAll(const std::string& text);
  void WriteLine(const std::string& text);
  // Writes a line that reports the number of lines dropped since the last such report. Does nothing
  // if that number is 0 or if `full` is true.
  void ReportDropped();
  std::string DroppedLine(int64_t count);  // empty: out of memory

  const int fd;
  const int64_t max_bytes;
  // True if only a part of the last line was written. Used only by the writing thread.
  bool partial_line = false;

  std::mutex formatter_mutex;
  std::unique_ptr<spdlog::formatter> formatter = std::make_unique<spdlog::pattern_formatter>();

  std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  std::deque<std::string> lines;
  int64_t bytes = 0;  // sum of the sizes of `lines`
  // Numbers of lines since the start. completed: lines that were written or dropped. reported:
  // dropped lines that are included in the report lines written so far.
  int64_t queued = 0, completed = 0, dropped = 0, reported = 0;
  // While true, every new line is dropped. Set when a line does not fit into the queue; cleared
  // when half of the queue is free.
  bool full = false;
  bool stop = false;
};

std::string LogQueue::State::Format(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t text;
  std::lock_guard<std::mutex> lock(formatter_mutex);
  formatter->format(message, text);
  return std::string(text.data(), text.size());
}

void LogQueue::State::Push(std::string text) {
  const int64_t size = static_cast<int64_t>(text.size());
  std::lock_guard<std::mutex> lock(mutex);
  full = full || (size <= max_bytes && bytes + size > max_bytes);
  if (full || size > max_bytes) {
    ++dropped;
    return;
  }
  lines.push_back(std::move(text));
  bytes += size;
  ++queued;
  changed.notify_all();
}

bool LogQueue::State::WriteAll(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {  // another process made it non-blocking
      pollfd writable = {fd, POLLOUT, 0};
      poll(&writable, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      partial_line = partial_line || done > 0;
      return false;
    }
  }
  return true;
}

void LogQueue::State::WriteLine(const std::string& text) {
  if (partial_line && WriteAll("\n")) partial_line = false;
  const bool written = !partial_line && WriteAll(text);
  if (!written) {
    std::lock_guard<std::mutex> lock(mutex);
    ++dropped;
    return;
  }
  ReportDropped();
}

void LogQueue::State::ReportDropped() {
  int64_t count = 0;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!full) count = dropped - reported;
  }
  if (count == 0) return;
  const std::string line = DroppedLine(count);
  if (line.empty() || !WriteAll(line)) return;
  std::lock_guard<std::mutex> lock(mutex);
  reported += count;
}

std::string LogQueue::State::DroppedLine(int64_t count) {
  try {
    const std::string text =
        std::to_string(count) + " lines of the log were lost here: it was blocked or full";
    return Format({"quintet", spdlog::level::warn, text});
  } catch (const std::exception&) {
    return "";
  }
}

void LogQueue::WriteLines(State* state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->stop || !state->lines.empty(); });
    if (state->stop) return;  // the destructor has flushed; the remaining lines are dropped
    const std::string line = std::move(state->lines.front());
    state->lines.pop_front();
    state->bytes -= static_cast<int64_t>(line.size());
    if (state->bytes <= state->max_bytes / 2) state->full = false;
    lock.unlock();
    state->WriteLine(line);
    lock.lock();
    ++state->completed;
    state->changed.notify_all();
  }
}

LogQueue::LogQueue(const Options& options)
    : options_(options), state_(std::make_shared<State>(options)) {
  // The writing thread blocks all signals, so that no signal handler runs where writes may block,
  // and so that writing to a closed pipe is an error and not a SIGPIPE.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  std::thread thread([state = state_] {
    pthread_setname_np(pthread_self(), "log");
    WriteLines(state.get());
  });
  thread.detach();
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

LogQueue::~LogQueue() {
  LogQueue::flush();
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

void LogQueue::log(const spdlog::details::log_msg& message) { Write(state_->Format(message)); }

void LogQueue::Write(std::string text) { state_->Push(std::move(text)); }

void LogQueue::flush() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  const int64_t target = state_->queued;
  const auto completed = [&] { return state_->completed >= target; };
  // Waits in short slices: if the process or the machine is suspended, only one slice of the
  // timeout is lost.
  constexpr int kSlices = 20;
  for (int i = 0; i < kSlices; ++i) {
    if (state_->changed.wait_for(lock, options_.flush_timeout / kSlices, completed)) return;
  }
}

void LogQueue::set_pattern(const std::string& pattern) {
  set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern));
}

void LogQueue::set_formatter(std::unique_ptr<spdlog::formatter> formatter) {
  std::lock_guard<std::mutex> lock(state_->formatter_mutex);
  state_->formatter = std::move(formatter);
}

void LogQueue::CountDropped() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  ++state_->dropped;
}

int64_t LogQueue::dropped_lines() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->dropped;
}

}  // namespace quintet
