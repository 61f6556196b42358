// Progress of a run over lines, on standard error: a bar on a terminal, otherwise a log line every
// 10 seconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace quintet {

class Progress {
 public:
  Progress();
  ~Progress() { Clear(); }

  struct State {
    int64_t lines = 0, failed = 0, tokens = 0;
    double fraction = -1;  // fraction of the input that is done; negative: unknown
  };
  // Shows the state, at most every 200 ms on a terminal and every 10 s in the log.
  void Update(const State& state);
  // Removes the bar, so that other text can be printed.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point begin_, last_;
};

}  // namespace quintet
