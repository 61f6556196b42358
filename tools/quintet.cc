// The quintet binary. Each subcommand has its own file; this one only lists them.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "absl/status/status.h"
#include "tools/command_line.h"
#include "tools/interrupt.h"

namespace quintet {
namespace {

// Opens /dev/null for each standard stream that the caller has closed. Otherwise the next file or
// socket that is opened would get the descriptor of that stream. /dev/null is deliberately opened
// in the wrong mode, so that reading from descriptor 0 and writing to 1 or 2 fail.
void HoldStandardStreams(int, char**, char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // `fd` is the lowest free descriptor, so open returns it.
    (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Runs HoldStandardStreams, which reserves the descriptors 0 to 2, before the constructors of
// shared libraries: gRPC's constructors open files, which could get these descriptors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const kFirst)(int, char**,
                                                                   char**) = HoldStandardStreams;

// Flushes standard output. Returns `exit_code`, or kExitFailed if `exit_code` is kExitDone and the
// output could not be written.
int AfterOutput(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  const int failed = Fail(kExitFailed, absl::ErrnoToStatus(errno, "writing standard output"));
  return exit_code == kExitDone ? failed : exit_code;
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) {
  // If a signal stops `serve` before it serves, there is nothing to drain, and the exit code is 0.
  const bool serve = argc > 1 && std::string_view(argv[1]) == "serve";
  quintet::HandleSignals(serve ? quintet::kExitDone : quintet::kExitInterrupted);
  if (serve) std::signal(SIGHUP, SIG_IGN);  // the API keys that SIGHUP reloads are not loaded yet
  quintet::CommandLine line;
  quintet::AddGenerateCommand(line);
  quintet::AddEncodeCommand(line);
  quintet::AddScoreCommand(line);
  quintet::AddClassifyCommand(line);
  quintet::AddConvertCommand(line);
  quintet::AddInspectCommand(line);
  quintet::AddServeCommand(line);
  quintet::AddHealthCommand(line);
  quintet::AddAdminCommand(line);
  quintet::AddBenchCommand(line);
  quintet::AddBenchServeCommand(line);
  quintet::AddBenchEngineCommand(line);
  quintet::AddCompletionCommand(line);
  quintet::AddManCommand(line);
  return quintet::AfterOutput(line.Run(argc, argv));
}
