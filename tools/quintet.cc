// The quintet binary. Subcommands live in files of their own; this one only lists them.
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

// Where the caller closed a standard stream, the next file opened would become it: a model's, or a
// socket. Instead it is one that fails: reading from descriptor 0, writing to 1 and 2.
void HoldStandardStreams(int, char**, char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free descriptor, which is this one.
    (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Before the constructors of shared libraries, since gRPC's open files.
[[gnu::section(".preinit_array"), gnu::used]] void (*const kFirst)(int, char**,
                                                                   char**) = HoldStandardStreams;

// What is printed to the end must have arrived.
int AfterOutput(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  const int failed = Fail(kExitFailed, absl::ErrnoToStatus(errno, "writing standard output"));
  return exit_code == kExitDone ? failed : exit_code;
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) {
  // A server that is told to stop before it serves has nothing to drain.
  const bool serve = argc > 1 && std::string_view(argv[1]) == "serve";
  quintet::HandleSignals(serve ? quintet::kExitDone : quintet::kExitInterrupted);
  if (serve) std::signal(SIGHUP, SIG_IGN);  // the file that it reads again is yet to be read
  quintet::CommandLine line;
  quintet::AddGenerateCommand(line);
  quintet::AddEncodeCommand(line);
  quintet::AddScoreCommand(line);
  quintet::AddClassifyCommand(line);
  quintet::AddConvertCommand(line);
  quintet::AddInspectCommand(line);
  quintet::AddServeCommand(line);
  quintet::AddBenchCommand(line);
  quintet::AddBenchServeCommand(line);
  quintet::AddBenchEngineCommand(line);
  quintet::AddCompletionCommand(line);
  return quintet::AfterOutput(line.Run(argc, argv));
}
