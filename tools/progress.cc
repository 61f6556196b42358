#include "tools/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

// Formats a duration as 0:07, 12:30 or 2:05:00 (hours, minutes and seconds).
std::string Duration(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(seconds));
  if (s < 3600) return absl::StrFormat("%d:%02d", s / 60, s % 60);
  return absl::StrFormat("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
}

// Returns the share of the work that is done, from 0 to 1, or a negative number if it is unknown.
double Done(const Progress::State& state) {
  if (state.total_lines < 0) return std::min(state.fraction, 1.0);
  if (state.total_lines == 0) return 1.0;
  return std::min(1.0, static_cast<double>(state.lines) / static_cast<double>(state.total_lines));
}

// Returns the share of the work that is done in per cent, rounded down. Uses integers if the number
// of lines is known, because in floating point 0.58 * 100 is less than 58.
int64_t Percent(const Progress::State& state) {
  if (state.total_lines > 0)
    return std::min(state.lines, state.total_lines) * 100 / state.total_lines;
  return static_cast<int64_t>(Done(state) * 100);
}

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

}  // namespace

std::string ProgressText(const Progress::State& state, double seconds) {
  std::string text = absl::StrCat(state.lines);
  if (state.total_lines >= 0) absl::StrAppend(&text, "/", state.total_lines);
  text += " lines";
  const double done = Done(state);
  if (done >= 0) absl::StrAppend(&text, " (", Percent(state), " %)");
  absl::StrAppendFormat(&text, ", %.1f lines/s, %.0f tokens/s", PerSecond(state.lines, seconds),
                        PerSecond(state.tokens, seconds));
  if (done > 0) absl::StrAppend(&text, ", ", Duration(seconds * (1 - done) / done), " left");
  if (state.failed > 0) absl::StrAppend(&text, ", ", state.failed, " failed");
  return text;
}

Progress::Progress(bool quiet)
    : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1), begin_(Clock::now()), last_(begin_) {}

double Progress::Seconds(Clock::time_point now) const {
  return std::chrono::duration<double>(now - begin_).count();
}

void Progress::Update(const State& state) {
  if (quiet_) return;
  const auto now = Clock::now();
  const auto interval = terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10);
  if (now - last_ < interval) return;
  last_ = now;
  const std::string text = ProgressText(state, Seconds(now));
  if (!terminal_) {
    spdlog::info("{}", text);
    return;
  }
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::Clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

void Progress::Summarise(const State& state) {
  if (quiet_) return;
  Clear();
  const double seconds = Seconds(Clock::now());
  spdlog::info("{} lines, {} tokens in {:.2f} s: {:.1f} lines/s, {:.0f} tokens/s, {} failed",
               state.lines, state.tokens, seconds, PerSecond(state.lines, seconds),
               PerSecond(state.tokens, seconds), state.failed);
}

}  // namespace quintet
