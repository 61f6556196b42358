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

// Opens /dev/null for each standard stream that the caller has closed; otherwise the next file or
// socket that is opened would get its descriptor. The wrong access mode is intended: reading from
// descriptor 0 and writing to 1 and 2 fail.
void HoldStandardStreams(int, char**, char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // open returns the lowest free descriptor, which is `fd`.
    (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Runs HoldStandardStreams before the constructors of shared libraries, because gRPC's open files.
[[gnu::section(".preinit_array"), gnu::used]] void (*const kFirst)(int, char**,
                                                                   char**) = HoldStandardStreams;

// Flushes standard output and returns the exit code; an error changes kExitDone to kExitFailed.
int AfterOutput(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  const int failed = Fail(kExitFailed, absl::ErrnoToStatus(errno, "writing standard output"));
  return exit_code == kExitDone ? failed : exit_code;
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) {
  // A server that is stopped by a signal before it serves has nothing to drain and exits with 0.
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
  quintet::AddBenchCommand(line);
  quintet::AddBenchServeCommand(line);
  quintet::AddBenchEngineCommand(line);
  quintet::AddCompletionCommand(line);
  quintet::AddManCommand(line);
  return quintet::AfterOutput(line.Run(argc, argv));
}
