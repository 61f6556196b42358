// For tests: runs the quintet binary in a child process.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace quintet {

struct Run {
  std::vector<std::string> args;
  std::string input;  // standard input
  // Environment variables for the process. It also inherits the variables of the test program,
  // except those that begin with QUINTET_. QUINTET_DEVICE is cpu unless it is set here, so that
  // commands without --device give the same results on a machine with a GPU.
  std::map<std::string, std::string> environment;
};

struct Outcome {
  int exit_code = -1;  // 128 + signal if a signal ended it
  std::string out, err;
};

// A running quintet process. Finish waits for the process to end and must be called once.
struct RunningBinary {
  pid_t pid;
  int out, err;
};
RunningBinary StartBinary(const Run& run);
Outcome Finish(const RunningBinary& binary);

inline Outcome RunBinary(const Run& run) { return Finish(StartBinary(run)); }

std::string G2pModel();                                   // directory of the shipped model
std::vector<std::string> Lines(const std::string& text);  // without newlines
std::string TestFile(const std::string& path);            // contents of tests/data/<path>

}  // namespace quintet
