#include "tools/line_runner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/cores.h"
#include "models/tokenizers/unicode.h"
#include "spdlog/spdlog.h"
#include "tools/interrupt.h"
#include "tools/line_format.h"
#include "tools/line_reader.h"
#include "tools/progress.h"

namespace quintet {
namespace {

constexpr size_t kMaxLineBytes = 8 * kMaxTextBytes;
// Lines pass in chunks from the reading thread through the parsing threads to the engine's thread.
// A chunk is full when it has kChunkLines lines or kChunkBytes bytes of text.
constexpr size_t kChunkLines = 32;
constexpr size_t kChunkBytes = size_t{1} << 16;
// Limit in bytes of the total text of all lines in flight. A single longer line is allowed.
constexpr int64_t kMaxBytesInFlight = int64_t{64} << 20;
// How often a waiting thread checks for an interrupt.
constexpr std::chrono::milliseconds kTick{100};

// An input line on its way from the reading thread to the writing thread. Only one thread at a time
// uses it, with one exception: the writing thread reads `formatted` at any time, under mutex_.
struct Line {
  int64_t number = 0;
  std::string text;
  absl::Status error;
  std::string carried;         // id and meta of JSON input, which JSON output repeats
  std::optional<LineJob> job;  // unset if parsing failed
  Result result;
  std::string output;
  int64_t bytes = 0;   // size of `text`
  int64_t tokens = 0;  // output tokens, or input tokens if there are none
  bool formatted = false;
};
using LinePtr = std::shared_ptr<Line>;

struct Chunk {
  std::vector<LinePtr> lines;
  bool parsed = false;  // guarded by mutex_
};

// Lines that the engine has finished but that have not yet been passed to the formatting threads
// (HandOver). Each request's LineSink, which receives its result, shares ownership of the list,
// because the engine may call the sink after the run has ended. Only the engine's thread uses the
// list.
using FinishedLines = std::vector<LinePtr>;

class LineSink : public ResponseSink {
 public:
  LineSink(LinePtr line, std::shared_ptr<FinishedLines> finished)
      : line_(std::move(line)), finished_(std::move(finished)) {}

  void OnDone(absl::StatusOr<Result> result) override {
    line_->error = result.status();
    if (result.ok()) {
      line_->result = *std::move(result);
      const Result& r = line_->result;
      line_->tokens = r.output_tokens > 0 ? r.output_tokens : r.input_tokens;
    }
    finished_->push_back(std::move(line_));
  }

 private:
  LinePtr line_;
  std::shared_ptr<FinishedLines> finished_;
};

// Counts the lines of a regular file from byte `at` to its end. Returns nullopt if reading fails or
// `stop` becomes true.
std::optional<int64_t> CountLines(int fd, int64_t at, const std::atomic<bool>& stop) {
  int64_t lines = 0;
  std::string bytes(size_t{1} << 20, '\0');
  char last = '\n';
  while (!stop) {
    const ssize_t got = pread(fd, bytes.data(), bytes.size(), at);
    if (got < 0) return std::nullopt;
    if (got == 0) return lines + (last != '\n' ? 1 : 0);
    lines += std::count(bytes.begin(), bytes.begin() + got, '\n');
    last = bytes[static_cast<size_t>(got) - 1];
    at += got;
  }
  return std::nullopt;
}

class LineRunner {
 public:
  LineRunner(Session& session, const LineFlags& flags, const LineCommand& command,
             LineOutput* output, LineOutput* side)
      : adapter_(AdapterOf(session)),
        command_(command),
        output_(output),
        side_(side),
        json_input_(flags.input == "json"),
        json_output_(flags.output == "json"),
        most_lines_(RequestsInFlight(session.max_running())),
        reader_(STDIN_FILENO, kMaxLineBytes),
        progress_(flags.quiet) {
    const std::vector<Session*> sessions = session.all();
    for (Session* const one : sessions) {
      const int64_t running = one->model->limits().max_step_sequences;
      engines_.push_back(
          {.session = one, .load = {.most = MostRequests(running, sessions.size())}});
      // So that OnDone does not allocate.
      engines_.back().finished->reserve(static_cast<size_t>(engines_.back().load.most));
    }
    running_ = usable_ = static_cast<int64_t>(engines_.size());
  }

  int Run() {
    if (reader_.total_bytes() >= 0) {
      // Query the file position of standard input before the reading thread starts, because that
      // thread moves it.
      const int64_t begin = lseek(STDIN_FILENO, 0, SEEK_CUR);
      Start([this, begin] { CountTotal(begin); });
    }
    Start([this] { ReadLines(); });
    // Start `workers` parsing threads and equally many formatting threads, because parsing a line
    // (with tokenizing) and formatting its result take about the same time. With four or more
    // cores, at least half of them remain for the engine's threads.
    const int workers = std::clamp(AvailableCores() / 4, 1, 4);
    for (int i = 0; i < workers; ++i) {
      Start([this] { ParseChunks(); });
      Start([this] { FormatLines(); });
    }
    Start([this] { WriteLines(); });
    for (size_t i = 1; i < engines_.size(); ++i) {
      Start([this, i] { RunEngine(&engines_[i]); });
    }
    const absl::Status status = CatchOutOfMemory([&] {
      RunEngine(&engines_[0]);
      return absl::OkStatus();
    });
    if (!status.ok()) Stop(status);
    counting_ends_ = true;
    for (std::thread& thread : threads_) thread.join();
    return Finish();
  }

 private:
  // One engine of the session.
  struct EngineQueue {
    Session* session;
    EngineLoad load;  // lines in this engine; guarded by mutex_
    // Lines that the engine has finished; LineSink adds them. Used only by the engine's thread.
    std::shared_ptr<FinishedLines> finished = std::make_shared<FinishedLines>();
  };

  static AdapterHandle AdapterOf(const Session& session) {
    const std::vector<AdapterHandle> adapters = session.adapters.handles();
    return adapters.empty() ? nullptr : adapters.front();
  }

  // Starts a thread that runs `work`. If `work` runs out of memory, the command ends with an error
  // instead of a crash. (If parsing or formatting a line runs out of memory, only that line fails.)
  template <typename Work>
  void Start(Work work) {
    threads_.emplace_back([this, work] {
      const absl::Status status = CatchOutOfMemory([&] {
        work();
        return absl::OkStatus();
      });
      if (!status.ok()) Stop(status);
    });
  }

  // Makes all threads end. `status` is the error that stopped the run; OK if an interrupt did.
  void Stop(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    error_.Update(status);
    stopped_ = true;
    for (std::condition_variable* wake :
         {&wake_reader_, &wake_parsers_, &wake_engines_, &wake_formatters_, &wake_writer_}) {
      wake->notify_all();
    }
  }

  // Waits on `wake` until ready() is true or the run is stopped. Returns false if it is stopped.
  template <typename Ready>
  bool WaitUntil(std::unique_lock<std::mutex>* lock, std::condition_variable* wake,
                 const Ready& ready) {
    wake->wait(*lock, [&] { return stopped_ || ready(); });
    return !stopped_;
  }

  // ---- Functions of the threads, in the order in which they process a line ----

  // Counts all lines of the input. `begin` is the position in the file of standard input at which
  // the input begins.
  void CountTotal(int64_t begin) {
    const std::optional<int64_t> lines = CountLines(STDIN_FILENO, begin, counting_ends_);
    if (lines) total_lines_ = *lines;
  }

  void ReadLines() {
    int64_t number = 0;
    std::string line;
    for (bool end = false; !end;) {
      {
        std::unique_lock lock(mutex_);
        if (!WaitUntil(&lock, &wake_reader_, [this] { return HasRoom(); })) return;
      }
      auto chunk = std::make_shared<Chunk>();
      for (size_t bytes = 0; chunk->lines.size() < kChunkLines && bytes < kChunkBytes;) {
        const int timeout_ms = chunk->lines.empty() ? static_cast<int>(kTick.count()) : 0;
        const LineReader::Outcome outcome = reader_.Next(timeout_ms, &line);
        if (outcome == LineReader::Outcome::kError) {
          Stop(absl::Status(reader_.error().code(),
                            absl::StrCat("reading standard input: ", reader_.error().message())));
          return;
        }
        if (outcome == LineReader::Outcome::kWait) {
          if (!chunk->lines.empty()) break;
          const std::lock_guard lock(mutex_);
          if (stopped_) return;
          continue;
        }
        end = outcome == LineReader::Outcome::kEnd;
        if (end) break;
        if (++number <= output_->kept_records()) continue;
        chunk->lines.push_back(NewLine(number, outcome, &line));
        bytes += static_cast<size_t>(chunk->lines.back()->bytes);
      }
      AddChunk(std::move(chunk), end);
    }
    if (number < output_->kept_records()) {
      Stop(absl::InvalidArgumentError(absl::StrCat("--resume: ", output_->name(),
                                                   " has the results of ", output_->kept_records(),
                                                   " lines, standard input has only ", number)));
    }
  }

  static LinePtr NewLine(int64_t number, LineReader::Outcome outcome, std::string* text) {
    auto line = std::make_shared<Line>();
    line->number = number;
    if (outcome == LineReader::Outcome::kTooLong) {
      line->error = absl::InvalidArgumentError(
          absl::StrCat("the line is longer than ", kMaxLineBytes, " bytes"));
    }
    line->bytes = static_cast<int64_t>(text->size());
    line->text.swap(*text);
    return line;
  }

  bool HasRoom() const {
    return lines_in_flight_ + static_cast<int64_t>(kChunkLines) <= most_lines_ &&
           (lines_in_flight_ == 0 || bytes_in_flight_ < kMaxBytesInFlight);
  }

  void AddChunk(std::shared_ptr<Chunk> chunk, bool end) {
    const std::lock_guard lock(mutex_);
    for (const LinePtr& line : chunk->lines) {
      ++lines_in_flight_;
      bytes_in_flight_ += line->bytes;
      to_write_.push_back(line);
    }
    if (!chunk->lines.empty()) {
      to_parse_.push_back(chunk);
      to_submit_.push_back(std::move(chunk));
    }
    read_all_ = end;
    bytes_read_ = reader_.bytes_read();
    compressed_input_ = reader_.compressed();
    if (!end) return wake_parsers_.notify_one();
    wake_parsers_.notify_all();
    wake_engines_.notify_all();
    wake_writer_.notify_one();
  }

  void ParseChunks() {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return read_all_ || !to_parse_.empty(); };
    while (WaitUntil(&lock, &wake_parsers_, ready)) {
      if (to_parse_.empty()) return;
      const std::shared_ptr<Chunk> chunk = std::move(to_parse_.front());
      to_parse_.pop_front();
      lock.unlock();
      for (const LinePtr& line : chunk->lines) {
        if (line->error.ok()) Parse(line.get());
      }
      lock.lock();
      chunk->parsed = true;
      if (chunk == to_submit_.front()) wake_engines_.notify_all();
    }
  }

  void Parse(Line* line) const {
    line->error = CatchOutOfMemory([&]() -> absl::Status {
      if (!IsUtf8(line->text)) {
        return absl::InvalidArgumentError(
            "the line is not UTF-8; convert the input, for example with iconv -t UTF-8");
      }
      if (json_input_) line->carried = CarriedFields(line->text);
      QT_ASSIGN_OR_RETURN(line->job, command_.parse(line->number, line->text));
      line->text = std::string();
      return absl::OkStatus();
    });
  }

  // Runs in an engine's thread: submits parsed lines and runs engine steps until all lines are
  // done.
  void RunEngine(EngineQueue* engine) {
    RunOnCpus(engine->session->cpus);
    std::vector<std::shared_ptr<Chunk>> parsed;
    for (bool busy = false; TakeParsed(engine, busy, &parsed);) {
      for (const std::shared_ptr<Chunk>& chunk : parsed) {
        for (const LinePtr& line : chunk->lines) Submit(engine, line);
      }
      busy = engine->session->engine->Step();
      HandOver(engine);
      if (engine->session->engine->status().ok()) continue;
      while (engine->session->engine->Step()) HandOver(engine);  // ends what it still has
      HandOver(engine);
      busy = false;
      if (Retire()) break;
    }
    const std::lock_guard lock(mutex_);
    if (--running_ > 0) return;
    submitted_all_ = true;
    wake_formatters_.notify_all();
  }

  // Called when the device of an engine has failed. Returns true if another engine can take the
  // remaining lines. The last one goes on, so that each line ends with its error.
  bool Retire() {
    const std::lock_guard lock(mutex_);
    if (usable_ == 1) return false;
    --usable_;
    return true;
  }

  // Moves chunks of lines to *parsed, in the order of the input, up to the first chunk that is not
  // parsed yet, and as many as the engine should take. If `busy` is false (the engine has no work),
  // waits until there is a parsed chunk. Returns false after Stop or an interrupt, or when all
  // lines have been submitted and those of this engine are finished.
  bool TakeParsed(EngineQueue* engine, bool busy, std::vector<std::shared_ptr<Chunk>>* parsed) {
    parsed->clear();
    std::unique_lock lock(mutex_);
    const auto ready = [&] {
      if (to_submit_.empty() || !to_submit_.front()->parsed) return false;
      const auto queued = static_cast<int64_t>(to_submit_.size() * kChunkLines);
      return ShareOfQueue(engine->load, lines_in_engines_, queued, usable_) > 0;
    };
    const auto end = [this] { return read_all_ && to_submit_.empty(); };
    while (!busy && !stopped_ && !ready() && !end() && !Interrupted()) {
      wake_engines_.wait_for(lock, kTick);
    }
    for (; ready(); to_submit_.pop_front()) {
      parsed->push_back(std::move(to_submit_.front()));
      const auto lines = static_cast<int64_t>(parsed->back()->lines.size());
      engine->load.own += lines;
      lines_in_engines_ += lines;
    }
    if (end()) wake_engines_.notify_all();
    if (Interrupted()) {
      lock.unlock();
      Stop(absl::OkStatus());
      return false;
    }
    return !stopped_ && (busy || !parsed->empty() || !end());
  }

  void Submit(EngineQueue* engine, const LinePtr& line) {
    if (line->error.ok()) {
      line->job->request.adapter = adapter_;
      line->job->request.sink = std::make_shared<LineSink>(line, engine->finished);
      line->error = engine->session->engine->Submit(std::move(line->job->request)).status();
      if (line->error.ok()) return;
    }
    engine->finished->push_back(line);
  }

  // Passes the lines that finished in the last engine step to the formatting threads.
  void HandOver(EngineQueue* engine) {
    FinishedLines& finished = *engine->finished;
    if (finished.empty()) return;
    const std::lock_guard lock(mutex_);
    engine->load.own -= static_cast<int64_t>(finished.size());
    lines_in_engines_ -= static_cast<int64_t>(finished.size());
    to_format_.insert(to_format_.end(), std::make_move_iterator(finished.begin()),
                      std::make_move_iterator(finished.end()));
    finished.clear();
    wake_formatters_.notify_all();
  }

  void FormatLines() {
    std::vector<LinePtr> lines;
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return submitted_all_ || !to_format_.empty(); };
    while (WaitUntil(&lock, &wake_formatters_, ready)) {
      if (to_format_.empty()) return;
      const auto count = static_cast<std::ptrdiff_t>(std::min(to_format_.size(), kChunkLines));
      lines.assign(std::make_move_iterator(to_format_.begin()),
                   std::make_move_iterator(to_format_.begin() + count));
      to_format_.erase(to_format_.begin(), to_format_.begin() + count);
      lock.unlock();
      for (const LinePtr& line : lines) Format(line.get());
      lock.lock();
      for (const LinePtr& line : lines) line->formatted = true;
      if (to_write_.front()->formatted) wake_writer_.notify_one();
    }
  }

  void Format(Line* line) const {
    if (line->error.ok()) {
      line->error = CatchOutOfMemory([&] {
        line->job->format(std::move(line->result), &line->output);
        return absl::OkStatus();
      });
    }
    line->job.reset();
    if (!line->error.ok()) line->output = command_.format_error(line->number, line->error);
    if (json_output_) line->output = WithFields(line->output, line->carried);
  }

  void WriteLines() {
    std::vector<LinePtr> lines;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        const auto ready = [this] { return !to_write_.empty() && to_write_.front()->formatted; };
        const auto end = [this] { return read_all_ && to_write_.empty(); };
        wake_writer_.wait_for(lock, kTick, [&] { return stopped_ || ready() || end(); });
        lines.clear();
        for (; ready(); to_write_.pop_front()) lines.push_back(std::move(to_write_.front()));
        if (lines.empty() && (stopped_ || end())) return;
        UpdateState();
      }
      if (!Write(lines)) return;
      progress_.Update(state_);
    }
  }

  // Writes the outputs of lines that are consecutive in the input. If writing fails, stops the run
  // and returns false.
  bool Write(const std::vector<LinePtr>& lines) {
    if (lines.empty()) return true;
    std::string out, side;
    int64_t bytes = 0;
    for (const LinePtr& line : lines) {
      WarnOfDroppedFields(*line);
      if (!line->error.ok()) {
        progress_.Clear();
        spdlog::error("line {}: {}", line->number, std::string(line->error.message()));
      }
      out += line->output;
      if (side_ != nullptr) side += command_.side->of(line->output);
      bytes += line->bytes;
    }
    if (output_->terminal()) progress_.Clear();
    absl::Status status = output_->Write(out);
    if (status.ok() && side_ != nullptr) status = side_->Write(side);
    if (!status.ok()) {
      Stop(absl::IsCancelled(status) ? absl::OkStatus() : status);
      return false;
    }
    for (const LinePtr& line : lines) {
      ++state_.lines;
      state_.tokens += line->tokens;
      state_.failed += line->error.ok() ? 0 : 1;
    }
    const std::lock_guard lock(mutex_);
    lines_in_flight_ -= static_cast<int64_t>(lines.size());
    bytes_in_flight_ -= bytes;
    wake_reader_.notify_one();
    return true;
  }

  // Warns once if a line has fields that the output format has no place for.
  void WarnOfDroppedFields(const Line& line) {
    if (json_output_ || line.carried.empty() || warned_of_fields_) return;
    warned_of_fields_ = true;
    progress_.Clear();
    spdlog::warn("line {}: \"id\" and \"meta\" are written only with --output json", line.number);
  }

  // Updates what the progress line shows: the total number of lines or, if that is unknown, the
  // fraction of the input that is done.
  void UpdateState() {
    const int64_t kept = output_->kept_records();
    if (const int64_t total = total_lines_; total >= 0 && !compressed_input_) {
      state_.total_lines = std::max<int64_t>(0, total - kept);
    } else if (reader_.total_bytes() > 0 && state_.lines > 0) {
      // bytes_read_ includes the bytes of lines in flight, which are not done. Multiply it by
      // (lines written) / (lines read).
      const double lines = static_cast<double>(kept + state_.lines);
      state_.fraction = static_cast<double>(bytes_read_) /
                        static_cast<double>(reader_.total_bytes()) * lines /
                        (lines + static_cast<double>(lines_in_flight_));
    }
  }

  // Finishes the output and returns the exit code. Called when all threads have ended.
  int Finish() {
    progress_.Clear();
    for (LineOutput* const output : {output_, side_}) {
      if (output == nullptr) continue;
      if (absl::Status status = output->Finish(); !absl::IsCancelled(status)) {
        error_.Update(status);
      }
    }
    if (!error_.ok()) {
      spdlog::error("{}", std::string(error_.message()));
      return absl::IsInvalidArgument(error_) ? kExitUsage : kExitFailed;
    }
    if (Interrupted()) {
      spdlog::warn("interrupted after {} lines", state_.lines);
      return kExitInterrupted;
    }
    progress_.Summarise(state_);
    if (state_.failed > 0) spdlog::error("{} of {} lines failed", state_.failed, state_.lines);
    return state_.failed > 0 ? kExitFailed : kExitDone;
  }

  const AdapterHandle adapter_;  // of all lines; null: none, or it was merged into the weights
  const LineCommand& command_;
  LineOutput* const output_;
  LineOutput* const side_;  // null without command_.side
  const bool json_input_, json_output_;
  bool warned_of_fields_ = false;  // that id and meta are not written; used by the writing thread
  const int64_t most_lines_;
  std::vector<EngineQueue> engines_;
  std::vector<std::thread> threads_;
  LineReader reader_;  // used by the reading thread; total_bytes() by all

  std::mutex mutex_;
  std::condition_variable wake_reader_, wake_parsers_, wake_engines_, wake_formatters_,
      wake_writer_;
  // Queues that pass chunks and lines from one thread to the next. mutex_ guards the queues and the
  // members after them, up to and including error_.
  std::deque<std::shared_ptr<Chunk>> to_parse_;   // read, not parsed
  std::deque<std::shared_ptr<Chunk>> to_submit_;  // not submitted, in input order
  std::deque<LinePtr> to_format_;                 // finished by the engine, or failed
  std::deque<LinePtr> to_write_;                  // all lines in flight, in input order
  int64_t lines_in_flight_ = 0, bytes_in_flight_ = 0, bytes_read_ = 0;
  int64_t lines_in_engines_ = 0;
  int64_t running_ = 0;  // engine threads that have not ended
  int64_t usable_ = 0;   // engines whose device has not failed
  bool read_all_ = false, submitted_all_ = false, stopped_ = false, compressed_input_ = false;
  absl::Status error_;

  std::atomic<int64_t> total_lines_{-1};  // lines of the input; -1: unknown
  std::atomic<bool> counting_ends_{false};
  // While the threads run, only the writing thread uses progress_ and state_.
  Progress progress_;
  Progress::State state_;
};

}  // namespace

int RunLines(Session& session, const LineFlags& flags, const LineCommand& command) {
  WatchForInterrupt();
  const auto fail = [](const absl::Status& status) {
    return Fail(absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed, status);
  };
  absl::StatusOr<std::unique_ptr<LineOutput>> output =
      LineOutput::Open(flags.output_file, flags.resume, command.record);
  if (!output.ok()) return fail(output.status());
  std::unique_ptr<LineOutput> side;
  if (command.side.has_value()) {
    absl::StatusOr<std::unique_ptr<LineOutput>> opened =
        LineOutput::Open(command.side->path, /*resume=*/false, command.side->record);
    if (!opened.ok()) return fail(opened.status());
    side = *std::move(opened);
    if (absl::Status status = side->Write(command.side->begin); !status.ok()) return fail(status);
  }
  return LineRunner(session, flags, command, output->get(), side.get()).Run();
}

int RunLines(Session& session, const LineFlags& flags, ParseLine parse) {
  LineCommand command;
  command.parse = std::move(parse);
  command.format_error = ErrorFormat(flags);
  return RunLines(session, flags, command);
}

}  // namespace quintet
