// How far a run over lines has come: a bar on a terminal, else a log line every 10 seconds.
// Standard error only.
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
    double fraction = -1;  // of the input; negative: unknown
  };
  // Shows the state when it is time to.
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
