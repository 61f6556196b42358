#include "models/checkpoint/atomic_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

// Writes the directory `target` with AtomicDirectory. It has two files, a and b, which both contain
// the text `value`.
absl::Status WritePair(const std::string& target, const std::string& value,
                       const AtomicDirectoryOptions& options) {
  absl::StatusOr<AtomicDirectory> directory = AtomicDirectory::Create(target, options);
  if (!directory.ok()) return directory.status();
  WriteText(directory->path() + "/a", value);
  WriteText(directory->path() + "/b", value);
  return directory->Commit();
}

TEST_CASE("A directory appears at Commit and not before") {
  ScratchDirectory scratch;
  {
    auto directory = AtomicDirectory::Create(scratch / "model/", {});
    REQUIRE(directory.ok());
    WriteText(directory->path() + "/a", "1");
    CHECK_FALSE(fs::exists(scratch / "model"));
    REQUIRE(directory->Commit().ok());
  }
  CHECK(ReadText(scratch / "model/a") == "1");
  CHECK(scratch.Entries() == std::vector<std::string>{"model"});
}

TEST_CASE("Without Commit no file remains") {
  ScratchDirectory scratch;
  {
    auto directory = AtomicDirectory::Create(scratch / "model", {});
    REQUIRE(directory.ok());
    WriteText(directory->path() + "/a", "1");
  }
  CHECK(scratch.Entries().empty());
}

TEST_CASE("A target that exists, is a link or a file, or has no parent is refused") {
  ScratchDirectory scratch;
  REQUIRE(WritePair(scratch / "model", "old", {}).ok());
  CHECK(WritePair(scratch / "model", "new", {}).code() == absl::StatusCode::kAlreadyExists);
  CHECK(ReadText(scratch / "model/a") == "old");
  fs::create_directory_symlink(scratch / "model", scratch / "link");
  CHECK(WritePair(scratch / "link", "new", {.replace = true}).code() ==
        absl::StatusCode::kFailedPrecondition);
  WriteText(scratch / "file", "x");
  CHECK(WritePair(scratch / "file", "new", {.replace = true}).code() ==
        absl::StatusCode::kFailedPrecondition);
  CHECK(WritePair(scratch / "none/model", "new", {}).code() == absl::StatusCode::kNotFound);
  CHECK(WritePair("..", "new", {}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(scratch.Entries() == std::vector<std::string>{"file", "link", "model"});
}

TEST_CASE("A target that appears during writing is not overwritten") {
  ScratchDirectory scratch;
  auto directory = AtomicDirectory::Create(scratch / "model", {});
  REQUIRE(directory.ok());
  REQUIRE(WritePair(scratch / "model", "other", {}).ok());
  CHECK(directory->Commit().code() == absl::StatusCode::kAlreadyExists);
  CHECK(ReadText(scratch / "model/b") == "other");
}

TEST_CASE("An existing directory is replaced by exchange or by two renames") {
  for (bool exchange : {true, false}) {
    ScratchDirectory scratch;
    REQUIRE(WritePair(scratch / "model", "old", {}).ok());
    fs::create_directory(scratch / "model/sub");
    REQUIRE(WritePair(scratch / "model", "new", {.replace = true, .exchange = exchange}).ok());
    CHECK(ReadText(scratch / "model/a") == "new");
    CHECK_FALSE(fs::exists(scratch / "model/sub"));
    CHECK(scratch.Entries() == std::vector<std::string>{"model"});
  }
}

TEST_CASE("A parent that is not writable is an error") {
  ScratchDirectory scratch;
  fs::create_directory(scratch / "parent");
  fs::permissions(scratch / "parent", fs::perms::owner_read | fs::perms::owner_exec |
                                          fs::perms::others_read | fs::perms::others_exec);
  fs::permissions(scratch / "", fs::perms::others_exec, fs::perm_options::add);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
      _exit(2);  // root may write everywhere
    const absl::Status status = WritePair(scratch / "parent/model", "new", {});
    _exit(status.code() == absl::StatusCode::kPermissionDenied ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(fs::is_empty(scratch / "parent"));
}

TEST_CASE("Temporary directories of killed runs are removed, those of running processes kept") {
  ScratchDirectory scratch;
  fs::create_directory(scratch / ".model.quintet-tmp-dead");
  WriteText(scratch / ".model.quintet-tmp-dead/a", "x");
  fs::create_directory(scratch / ".model.quintet-tmp-busy");
  fs::create_directory(scratch / ".other.quintet-tmp-dead");
  const int lock = open((scratch / ".model.quintet-tmp-busy").c_str(), O_RDONLY);
  REQUIRE(flock(lock, LOCK_EX | LOCK_NB) == 0);
  REQUIRE(WritePair(scratch / "model", "new", {}).ok());
  close(lock);
  CHECK(scratch.Entries() ==
        std::vector<std::string>{".model.quintet-tmp-busy", ".other.quintet-tmp-dead", "model"});
}

TEST_CASE("A directory caught between two renames is restored by the next run") {
  ScratchDirectory scratch;
  REQUIRE(WritePair(scratch / "model", "old", {}).ok());
  fs::rename(scratch / "model", scratch / ".model.quintet-old-1");
  CHECK(WritePair(scratch / "model", "new", {}).code() == absl::StatusCode::kAlreadyExists);
  CHECK(ReadText(scratch / "model/a") == "old");
  // AtomicDirectory replaces a directory by renaming the old one to .model.quintet-old-N first. A
  // run that was killed may leave it under that name. If `model` itself exists, the next run
  // removes that old directory instead of restoring it.
  fs::create_directory(scratch / ".model.quintet-old-2");
  REQUIRE(WritePair(scratch / "model", "new", {.replace = true}).ok());
  CHECK(scratch.Entries() == std::vector<std::string>{"model"});
}

// Starts a child process that replaces the directory `target` again and again, by directories whose
// files contain new0, new1, ..., and kills it after `delay_us` microseconds.
void KillWhileWriting(const std::string& target, bool exchange, int delay_us) {
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0;; ++i) {
      const AtomicDirectoryOptions options{.replace = true, .exchange = exchange};
      if (!WritePair(target, "new" + std::to_string(i), options).ok()) _exit(1);
    }
  }
  usleep(delay_us);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));  // the child was still writing without an error
}

TEST_CASE("A process killed at 100 random moments leaves a complete or a restorable directory") {
  std::mt19937 random(7);
  for (bool exchange : {true, false}) {
    ScratchDirectory scratch;
    for (int round = 0; round < 100; ++round) {
      REQUIRE(WritePair(scratch / "model", "old", {.replace = true}).ok());
      KillWhileWriting(scratch / "model", exchange, 200 + random() % 4000);
      if (!exchange && !fs::exists(scratch / "model")) {
        CHECK(WritePair(scratch / "model", "x", {}).code() == absl::StatusCode::kAlreadyExists);
      }
      const std::string value = ReadText(scratch / "model/a");
      REQUIRE_FALSE(value.empty());
      REQUIRE(ReadText(scratch / "model/b") == value);
    }
    REQUIRE(WritePair(scratch / "model", "last", {.replace = true}).ok());
    CHECK(scratch.Entries() == std::vector<std::string>{"model"});
  }
}

}  // namespace
}  // namespace quintet
