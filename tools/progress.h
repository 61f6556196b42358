// Shows on standard error the progress of a command that processes lines: on a terminal one line
// that is redrawn, otherwise a log line every 10 seconds. At the end it logs a summary.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace quintet {

class Progress {
 public:
  struct State {
    int64_t lines = 0, failed = 0, tokens = 0;  // counts of this run
    int64_t total_lines = -1;                   // number of lines of this run; -1: unknown
    double fraction = -1;  // share of the input that is done, in bytes; -1: unknown
  };

  // If `quiet`, shows nothing.
  explicit Progress(bool quiet);
  ~Progress() { Clear(); }

  // Shows `state`, at most once per 200 ms on a terminal and once per 10 s in the log.
  void Update(const State& state);
  // Removes the progress line from the terminal, so that other text can be printed.
  void Clear();
  // Logs a summary of the whole run: lines, tokens, seconds and rates.
  void Summarise(const State& state);

 private:
  using Clock = std::chrono::steady_clock;

  double Seconds(Clock::time_point now) const;

  bool quiet_, terminal_;
  bool shown_ = false;
  Clock::time_point begin_, last_;
};

// Returns the text of the progress line `seconds` after the start of the run, without a newline:
// lines done and in total, share, rates, estimated time left, failed lines. Omits values that are
// unknown.
std::string ProgressText(const Progress::State& state, double seconds);

}  // namespace quintet
