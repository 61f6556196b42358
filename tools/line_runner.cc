#include "tools/line_runner.h"

#include <errno.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "spdlog/spdlog.h"
#include "tools/interrupt.h"
#include "tools/line_format.h"
#include "tools/line_reader.h"
#include "tools/progress.h"

namespace quintet {
namespace {

// A line between being read and being written.
struct PendingLine {
  int64_t number = 0;
  bool done = false;
  std::string output;
  absl::Status error;
  int64_t tokens = 0;
};

// Formats a result when it arrives, so that only the text is kept until earlier lines are done.
class LineSink : public ResponseSink {
 public:
  LineSink(std::shared_ptr<PendingLine> line,
           std::function<void(const Result&, std::string*)> format)
      : line_(std::move(line)), format_(std::move(format)) {}

  void OnDone(absl::StatusOr<Result> result) override {
    line_->done = true;
    line_->error = result.status();
    if (!result.ok()) return;
    line_->tokens = result->output_tokens > 0 ? result->output_tokens : result->input_tokens;
    format_(*result, &line_->output);
  }

 private:
  std::shared_ptr<PendingLine> line_;
  std::function<void(const Result&, std::string*)> format_;
};

class LineRunner {
 public:
  LineRunner(Session& session, const LineCommand& command)
      : session_(session), command_(command), reader_(STDIN_FILENO, 8 * kMaxTextBytes) {}

  int Run() {
    const size_t window = static_cast<size_t>(session_.flags.max_running) * 4;
    while (!Interrupted()) {
      if (!FillWindow(window)) break;
      if (window_.empty() && end_) break;
      session_.engine->Step();
      if (!WriteFinished()) break;
      ShowProgress();
    }
    progress_.Clear();
    if (Interrupted()) {
      spdlog::warn("interrupted after {} lines", state_.lines);
      return kExitInterrupted;
    }
    if (state_.failed > 0) spdlog::error("{} of {} lines failed", state_.failed, state_.lines);
    return broken_ || state_.failed > 0 ? kExitFailed : kExitDone;
  }

 private:
  // Reads and submits lines while there is room; waits for input only when the engine is idle.
  // False when reading failed.
  bool FillWindow(size_t window) {
    while (!end_ && window_.size() < window && !Interrupted()) {
      std::string line;
      const LineReader::Outcome outcome = reader_.Next(window_.empty() ? -1 : 0, &line);
      switch (outcome) {
        case LineReader::Outcome::kWait:
          return true;
        case LineReader::Outcome::kEnd:
          end_ = true;
          return true;
        case LineReader::Outcome::kError:
          progress_.Clear();
          spdlog::error("reading standard input: {}", std::strerror(errno));
          broken_ = true;
          return false;
        case LineReader::Outcome::kTooLong:
        case LineReader::Outcome::kLine:
          Admit(line, outcome == LineReader::Outcome::kTooLong);
      }
    }
    return true;
  }

  void Admit(const std::string& line, bool too_long) {
    window_.push_back(std::make_shared<PendingLine>());
    const std::shared_ptr<PendingLine>& pending = window_.back();
    pending->number = ++lines_read_;
    const absl::Status status = too_long
                                    ? absl::InvalidArgumentError(absl::StrCat(
                                          "the line is longer than ", 8 * kMaxTextBytes, " bytes"))
                                    : Submit(line, pending);
    if (status.ok()) return;
    pending->error = status;
    pending->done = true;
  }

  absl::Status Submit(const std::string& line, const std::shared_ptr<PendingLine>& pending) {
    QT_ASSIGN_OR_RETURN(LineJob job, command_.parse(pending->number, line));
    job.request.sink = std::make_shared<LineSink>(pending, std::move(job.format));
    absl::StatusOr<RequestId> id = session_.engine->Submit(std::move(job.request));
    return id.status();
  }

  // Writes the finished lines at the front of the window. False when standard output is broken.
  bool WriteFinished() {
    std::string out;
    while (!window_.empty() && window_.front()->done) {
      const PendingLine& line = *window_.front();
      ++state_.lines;
      state_.tokens += line.tokens;
      if (line.error.ok()) {
        out += line.output;
      } else {
        ++state_.failed;
        progress_.Clear();
        spdlog::error("line {}: {}", line.number, std::string(line.error.message()));
        out += command_.format_error(line.number, line.error);
      }
      window_.pop_front();
    }
    for (size_t written = 0; written < out.size();) {
      const ssize_t n = write(STDOUT_FILENO, out.data() + written, out.size() - written);
      if (n >= 0) {
        written += static_cast<size_t>(n);
      } else if (errno != EINTR || Interrupted()) {
        if (errno == EINTR) return true;
        progress_.Clear();
        spdlog::error("writing standard output: {}", std::strerror(errno));
        broken_ = true;
        return false;
      }
    }
    return true;
  }

  void ShowProgress() {
    const int64_t total = reader_.total_bytes();
    if (total > 0 && lines_read_ > 0) {
      // Lines that are read but not yet written do not count as done.
      const double read = static_cast<double>(reader_.bytes_read()) / static_cast<double>(total);
      state_.fraction = read * static_cast<double>(state_.lines) / static_cast<double>(lines_read_);
    }
    progress_.Update(state_);
  }

  Session& session_;
  const LineCommand& command_;
  LineReader reader_;
  Progress progress_;
  Progress::State state_;
  std::deque<std::shared_ptr<PendingLine>> window_;  // in input order
  int64_t lines_read_ = 0;
  bool end_ = false, broken_ = false;
};

}  // namespace

int RunLines(Session& session, const LineCommand& command) {
  WatchForInterrupt();
  return LineRunner(session, command).Run();
}

}  // namespace quintet
