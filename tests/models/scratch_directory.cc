#include "tests/models/scratch_directory.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/checkpoint/sha256.h"
#include "tests/catch.h"

namespace quintet {

namespace fs = std::filesystem;

ScratchDirectory::ScratchDirectory() {
  char name[] = "/tmp/quintet_test_XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  path_ = name;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::permissions(path_, fs::perms::owner_all, ignored);
  fs::remove_all(path_, ignored);
}

std::vector<std::string> ScratchDirectory::Entries() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string ReadText(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

std::string Sha256OfFile(const std::string& path) {
  Sha256 hash;
  REQUIRE(HashFile(path, &hash).ok());
  return hash.Finish();
}

}  // namespace quintet
