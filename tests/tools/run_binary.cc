#include "tests/tools/run_binary.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/catch.h"

extern char** environ;

namespace quintet {
namespace {

// Returns the descriptor of an unnamed temporary file that contains `contents`. Unlike a pipe, a
// file never blocks the process that writes to it.
int TemporaryFile(const std::string& contents) {
  char name[] = "/tmp/quintet_test_XXXXXX";
  const int fd = mkstemp(name);
  REQUIRE(fd >= 0);
  unlink(name);
  REQUIRE(write(fd, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()));
  REQUIRE(lseek(fd, 0, SEEK_SET) == 0);
  return fd;
}

std::string ReadAll(int fd) {
  std::string text;
  REQUIRE(lseek(fd, 0, SEEK_SET) == 0);
  char buffer[1 << 16];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(fd);
  return text;
}

std::vector<std::string> Environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> variables = {"QUINTET_DEVICE=cpu"};
  if (added.count("QUINTET_DEVICE") > 0) variables.clear();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (text.rfind("QUINTET_", 0) != 0) variables.push_back(text);
  }
  for (const auto& [name, value] : added) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

RunningBinary StartBinary(const Run& run) {
  std::vector<std::string> args = {QUINTET_BINARY};
  args.insert(args.end(), run.args.begin(), run.args.end());
  std::vector<std::string> environment = Environment(run.environment);
  const int files[3] = {TemporaryFile(run.input), TemporaryFile(""), TemporaryFile("")};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int i = 0; i < 3; ++i) posix_spawn_file_actions_adddup2(&actions, files[i], i);
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, QUINTET_BINARY, &actions, nullptr, Pointers(args).data(),
                      Pointers(environment).data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(files[0]);
  return {child, files[1], files[2]};
}

Outcome Finish(const RunningBinary& binary) {
  int status = 0;
  REQUIRE(waitpid(binary.pid, &status, 0) == binary.pid);
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = ReadAll(binary.out);
  outcome.err = ReadAll(binary.err);
  return outcome;
}

std::string G2pModel() { return std::string(QUINTET_SOURCE_DIR) + "/deploy/models/g2p"; }

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string TestFile(const std::string& path) {
  std::ifstream file(std::string(QUINTET_SOURCE_DIR) + "/tests/data/" + path, std::ios::binary);
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace quintet
