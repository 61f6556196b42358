// Progress of a job over lines, on standard error: one line that is redrawn on a terminal,
// otherwise a log line every 10 seconds; and a summary at the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace quintet {

class Progress {
 public:
  struct State {
    int64_t lines = 0, failed = 0, tokens = 0;  // of this run
    int64_t total_lines = -1;                   // of this run; -1: unknown
    double fraction = -1;  // share of the input's bytes that is done; -1: unknown
  };

  // `quiet`: shows nothing.
  explicit Progress(bool quiet);
  ~Progress() { Clear(); }

  // Shows the state, at most every 200 ms on a terminal and every 10 s in the log.
  void Update(const State& state);
  // Removes the line from the terminal, so that other text can be printed.
  void Clear();
  // Logs lines, tokens, seconds and rates of the whole run.
  void Summarise(const State& state);

 private:
  using Clock = std::chrono::steady_clock;

  double Seconds(Clock::time_point now) const;

  bool quiet_, terminal_;
  bool shown_ = false;
  Clock::time_point begin_, last_;
};

// The text of a progress line, without the end of the line: lines done and in total, share, rates,
// estimated time left, failed lines. What is unknown is left out.
std::string ProgressText(const Progress::State& state, double seconds);

}  // namespace quintet
