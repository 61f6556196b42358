// The include direction of the libraries: server -> engine -> models -> kernels. What a folder may
// not know it may not include.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace quintet {
namespace {

namespace fs = std::filesystem;

// Folders of ours that each folder may include, itself apart.
const std::map<std::string, std::vector<std::string>>& Allowed() {
  static const auto* const allowed = new std::map<std::string, std::vector<std::string>>{
      {"kernels", {}},
      {"models", {"kernels"}},
      {"engine", {"models", "kernels"}},
      {"server", {"engine", "models", "kernels", "proto"}},
      {"tools", {"server", "engine", "models", "kernels", "proto"}},
      {"tests", {"tools", "server", "engine", "models", "kernels", "proto"}},
  };
  return *allowed;
}

// The first folder of each #include "..." in a source text; empty for a name without one.
std::vector<std::string> IncludedFolders(std::istream& source) {
  std::vector<std::string> folders;
  for (std::string line; std::getline(source, line);) {
    const size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || line.compare(word, 7, "include") != 0) continue;
    const size_t open = line.find('"', word);
    if (open == std::string::npos) continue;
    const size_t slash = line.find('/', open);
    folders.push_back(slash == std::string::npos ? "" : line.substr(open + 1, slash - open - 1));
  }
  return folders;
}

bool Permitted(const std::string& from, const std::string& to) {
  const bool ours = Allowed().count(to) > 0 || to == "proto";
  if (!ours || from == to) return true;
  const std::vector<std::string>& allowed = Allowed().at(from);
  return std::find(allowed.begin(), allowed.end(), to) != allowed.end();
}

bool IsSource(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

std::vector<fs::path> Sources(const std::string& folder) {
  std::vector<fs::path> sources;
  const fs::path root = fs::path(QUINTET_SOURCE_DIR) / folder;
  if (!fs::exists(root)) return sources;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file() && IsSource(entry.path())) sources.push_back(entry.path());
  }
  return sources;
}

TEST_CASE("includes are recognised and judged") {
  std::istringstream source(
      "#include <vector>\n#include \"models/model.h\"\n  #  include \"engine/engine.h\"\n"
      "// #include \"server/no.h\"\n#include \"catch2/catch.hpp\"\n");
  const std::vector<std::string> folders = IncludedFolders(source);
  REQUIRE(folders == std::vector<std::string>{"models", "engine", "catch2"});
  CHECK(Permitted("engine", "models"));
  CHECK(Permitted("kernels", "catch2"));
  CHECK_FALSE(Permitted("kernels", "models"));
  CHECK_FALSE(Permitted("models", "engine"));
  CHECK_FALSE(Permitted("engine", "proto"));
  CHECK_FALSE(Permitted("engine", "tools"));
}

TEST_CASE("each folder includes only itself and the folders below it") {
  for (const auto& [folder, allowed] : Allowed()) {
    const std::vector<fs::path> sources = Sources(folder);
    if (folder != "server") CHECK_FALSE(sources.empty());
    for (const fs::path& path : sources) {
      std::ifstream file(path);
      for (const std::string& included : IncludedFolders(file)) {
        INFO(path.string() << " includes " << included << "/...");
        CHECK_FALSE(included.empty());  // includes start at the root
        CHECK(Permitted(folder, included));
      }
    }
  }
}

TEST_CASE("product sources stay within 600 lines") {
  for (const auto& [folder, allowed] : Allowed()) {
    if (folder == "tests") continue;
    for (const fs::path& path : Sources(folder)) {
      // Written by tools/make_unicode_tables.py, for nobody to read.
      if (path.filename() == "unicode_tables.cc") continue;
      std::ifstream file(path);
      const auto lines = std::count(std::istreambuf_iterator<char>(file), {}, '\n');
      INFO(path.string());
      CHECK(lines <= 600);
    }
  }
}

}  // namespace
}  // namespace quintet
