#include "tools/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace quintet {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1), begin_(Clock::now()), last_(begin_) {}

void Progress::Update(const State& state) {
  const auto now = Clock::now();
  const auto interval = terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10);
  if (now - last_ < interval) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  char text[160];
  std::snprintf(text, sizeof(text), "%lld lines, %.1f lines/s, %.0f tokens/s, %lld failed",
                static_cast<long long>(state.lines), static_cast<double>(state.lines) / seconds,
                static_cast<double>(state.tokens) / seconds, static_cast<long long>(state.failed));
  if (!terminal_) {
    spdlog::info("{}", text);
    return;
  }
  std::string bar;
  if (state.fraction >= 0) {
    constexpr size_t kCells = 30;
    const double fraction = std::min(state.fraction, 1.0);
    const size_t full = static_cast<size_t>(fraction * kCells);
    bar = absl::StrCat("[", std::string(full, '#'), std::string(kCells - full, '.'), "] ",
                       static_cast<int>(fraction * 100), "% ");
  }
  std::fprintf(stderr, "\r\033[K%s%s", bar.c_str(), text);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::Clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace quintet
