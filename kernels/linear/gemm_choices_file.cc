#include "kernels/linear/gemm_choices_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace quintet {
namespace {

std::string FileOf(const std::string& directory, const std::string& kind) {
  std::string name = "products-";
  for (const char c : kind) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    name.push_back(plain ? c : '-');
  }
  return absl::StrCat(directory, "/", name, ".txt");
}

absl::Status Failed(absl::string_view what, const std::string& file, int error) {
  return absl::UnavailableError(absl::StrCat(what, " ", file, ": ", std::strerror(error)));
}

// Reads to the end of the file, but stops as soon as more than `most` bytes have been read. Returns
// false, with errno set, if reading fails.
bool ReadAll(int fd, size_t most, std::string* text) {
  char block[1 << 16];
  while (text->size() <= most) {
    const ssize_t got = read(fd, block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    text->append(block, static_cast<size_t>(got));
  }
  return true;
}

bool WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = write(fd, text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return fsync(fd) == 0;
}

}  // namespace

std::string CacheDirectory() {
  const char* own = std::getenv("QUINTET_CACHE_DIR");
  if (own != nullptr && own[0] != '\0') return std::strcmp(own, "none") == 0 ? "" : own;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return absl::StrCat(cache, "/quintet");
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.cache/quintet");
  return "";
}

absl::Status LoadGemmAlgorithmChoices(const std::string& directory, const std::string& kind,
                                      GemmAlgorithmChoices* choices) {
  if (directory.empty()) return absl::OkStatus();
  const std::string file = FileOf(directory, kind);
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT ? absl::OkStatus() : Failed("cannot open", file, errno);
  struct stat about {};
  std::string text;
  absl::Status status;
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    status = absl::UnavailableError(absl::StrCat(file, " is not a regular file"));
  } else if (!ReadAll(fd, GemmAlgorithmChoices::kMostTextBytes, &text)) {
    status = Failed("cannot read", file, errno);
  } else if (status = choices->Merge(text, kind); !status.ok()) {
    status = absl::DataLossError(absl::StrCat(file, ": ", status.message()));
  }
  close(fd);
  return status;
}

absl::Status SaveGemmAlgorithmChoices(const std::string& directory, const std::string& kind,
                                      const GemmAlgorithmChoices& choices) {
  if (directory.empty() || !choices.changed()) return absl::OkStatus();
  GemmAlgorithmChoices all = choices;
  LoadGemmAlgorithmChoices(directory, kind, &all).IgnoreError();  // a damaged file is replaced
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string file = FileOf(directory, kind);
  std::string sibling = file + ".XXXXXX";
  const int fd = mkstemp(sibling.data());
  if (fd < 0) return Failed("cannot write", sibling, errno);
  const bool written = WriteAll(fd, all.Text(kind));
  const int write_error = errno;
  close(fd);
  if (written && rename(sibling.c_str(), file.c_str()) == 0) return absl::OkStatus();
  const int failed = written ? errno : write_error;
  unlink(sibling.c_str());
  return Failed("cannot write", file, failed);
}

}  // namespace quintet
