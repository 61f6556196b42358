#include "kernels/linear/gemm_choices_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr char kKind[] = "A card, 132 multiprocessors, driver 1/2";
constexpr GemmAlgorithmChoices::Key kStoredKey = {48, 768, 3072, 3072, 768, 768, 256, 256, 256, 7};

constexpr GemmAlgorithmChoices::Key kOtherKey = {96, 768, 3072, 3072, 768, 768, 256, 256, 256, 7};

// Sets an environment variable. The destructor restores its previous value.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, 1);
  }
  ~Variable() {
    if (before_.has_value()) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "product_cache.XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string cache() const { return path_ + "/new/quintet"; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(cache()))
      names.push_back(entry.path());
    return names;
  }

 private:
  std::string path_;
};

TEST_CASE("product choices are stored in a directory that is created if needed") {
  const Folder folder;
  GemmAlgorithmChoices choices, read;
  CHECK(LoadGemmAlgorithmChoices(folder.cache(), kKind, &read).ok());
  choices.Add(kStoredKey, 2);
  REQUIRE(SaveGemmAlgorithmChoices(folder.cache(), kKind, choices).ok());
  REQUIRE(LoadGemmAlgorithmChoices(folder.cache(), kKind, &read).ok());
  CHECK(read.Find(kStoredKey) == 2);
  CHECK(folder.files().size() == 1);  // no temporary file is left
  GemmAlgorithmChoices of_another;
  CHECK(LoadGemmAlgorithmChoices(folder.cache(), "another card", &of_another).ok());
  CHECK(of_another.size() == 0);
}

TEST_CASE("without new choices, or a directory, nothing is written") {
  const Folder folder;
  CHECK(SaveGemmAlgorithmChoices(folder.cache(), kKind, GemmAlgorithmChoices()).ok());
  CHECK_FALSE(std::filesystem::exists(folder.cache()));
  GemmAlgorithmChoices choices;
  choices.Add(kStoredKey, 2);
  CHECK(SaveGemmAlgorithmChoices("", kKind, choices).ok());
  CHECK(LoadGemmAlgorithmChoices("", kKind, &choices).ok());
}

TEST_CASE("choices that another process stored for other shapes are kept") {
  const Folder folder;
  GemmAlgorithmChoices first, second, read;
  first.Add(kStoredKey, 2);
  second.Add(kOtherKey, 3);
  REQUIRE(SaveGemmAlgorithmChoices(folder.cache(), kKind, first).ok());
  REQUIRE(SaveGemmAlgorithmChoices(folder.cache(), kKind, second).ok());
  REQUIRE(LoadGemmAlgorithmChoices(folder.cache(), kKind, &read).ok());
  CHECK(read.Find(kStoredKey) == 2);
  CHECK(read.Find(kOtherKey) == 3);
}

TEST_CASE("the directory of product choices comes from the environment") {
  const Variable own("QUINTET_CACHE_DIR", "/own"), cache("XDG_CACHE_HOME", "/cache");
  const Variable home("HOME", "/home/user");
  CHECK(CacheDirectory() == "/own");
  setenv("QUINTET_CACHE_DIR", "none", 1);
  CHECK(CacheDirectory().empty());
  setenv("QUINTET_CACHE_DIR", "", 1);
  CHECK(CacheDirectory() == "/cache/quintet");
  setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK(CacheDirectory() == "/home/user/.cache/quintet");
  unsetenv("HOME");
  CHECK(CacheDirectory().empty());
}

TEST_CASE("a damaged file of product choices is reported, then replaced") {
  const Folder folder;
  GemmAlgorithmChoices choices;
  choices.Add(kStoredKey, 2);
  REQUIRE(SaveGemmAlgorithmChoices(folder.cache(), kKind, choices).ok());
  const std::string file = folder.files().at(0);
  GemmAlgorithmChoices read;
  const std::string whole = choices.Text(kKind);
  for (const std::string& damaged :
       {std::string(), whole.substr(0, whole.size() / 2), whole + "more", std::string(100, '\0'),
        std::string(GemmAlgorithmChoices::kMostTextBytes + 100, '9')}) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << damaged;
    CHECK(absl::IsDataLoss(LoadGemmAlgorithmChoices(folder.cache(), kKind, &read)));
    CHECK(read.size() == 0);
  }
  REQUIRE(SaveGemmAlgorithmChoices(folder.cache(), kKind, choices).ok());
  CHECK(LoadGemmAlgorithmChoices(folder.cache(), kKind, &read).ok());
  CHECK(read.size() == 1);
}

TEST_CASE("only regular files are read as product choices") {
  const Folder folder;
  GemmAlgorithmChoices choices;
  choices.Add(kStoredKey, 2);
  REQUIRE(SaveGemmAlgorithmChoices(folder.cache(), kKind, choices).ok());
  const std::string file = folder.files().at(0);
  std::filesystem::rename(file, file + ".moved");
  std::filesystem::create_symlink(file + ".moved", file);
  CHECK(absl::IsUnavailable(LoadGemmAlgorithmChoices(folder.cache(), kKind, &choices)));
  std::filesystem::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);  // opening it would block
  CHECK(absl::IsUnavailable(LoadGemmAlgorithmChoices(folder.cache(), kKind, &choices)));
}

TEST_CASE("a cache directory that cannot be written is an error, not a crash") {
  const Folder folder;
  std::filesystem::create_directories(std::filesystem::path(folder.cache()).parent_path());
  std::ofstream(folder.cache()) << "a file where the directory should be";
  GemmAlgorithmChoices choices;
  choices.Add(kStoredKey, 2);
  CHECK(absl::IsUnavailable(SaveGemmAlgorithmChoices(folder.cache(), kKind, choices)));
}

}  // namespace
}  // namespace quintet
