// Tests the direction of includes between the libraries: server -> engine -> models -> kernels. A
// folder may include headers only of the libraries that it depends on.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

// Maps each folder to the other folders whose headers its files may include.
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

// The families (subfolders) of each library, in order. A family may include itself and the families
// before it. Files directly in the library's folder (the op tables of kernels/, the forward passes
// of models/) are exempt, because the dispatch code of every op includes the op tables.
const std::map<std::string, std::vector<std::string>>& Families() {
  static const auto* const families = new std::map<std::string, std::vector<std::string>>{
      {"kernels", {"base", "runtime", "ptx", "ops", "linear", "attention", "sampling"}},
      {"models", {"checkpoint", "tokenizers", "config", "weights", "adapters", "convert"}},
  };
  return *families;
}

// A file may include only its own family (subfolder) and those before it in Families(). The two
// files that implement Device::Open may also include later families, because it creates the
// per-device state of the ops: cuBLASLt and the measured GEMM choices.
bool MayIncludeLaterFamilies(const std::string& path) {
  return path == "kernels/runtime/device.cu" || path == "kernels/runtime/device_cuda.h";
}

// A family is a subfolder of a library, or "" for the files directly in the library's folder.
// Returns whether a file of family `from` may include a file of family `to` in the same library.
bool InOrder(const std::vector<std::string>& families, const std::string& from,
             const std::string& to) {
  const auto place = [&](const std::string& family) {
    return std::find(families.begin(), families.end(), family);
  };
  return place(from) == families.end() || place(to) == families.end() || place(to) <= place(from);
}

// For each #include "..." in a source text, returns the first folder of the included path; "" if
// the path has no folder.
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

TEST_CASE("include directives are parsed and checked against the allowed folders") {
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

// Splits a path into library and family: "kernels/linear/gemv.cu" gives {"kernels", "linear"}. A
// file directly in the library's folder has the family "".
std::pair<std::string, std::string> FamilyOf(const std::string& path) {
  const size_t first = path.find('/');
  const size_t second = path.find('/', first + 1);
  if (first == std::string::npos) return {"", ""};
  if (second == std::string::npos) return {path.substr(0, first), ""};
  return {path.substr(0, first), path.substr(first + 1, second - first - 1)};
}

TEST_CASE("families of a library include only themselves and the families before them") {
  CHECK(InOrder({"base", "ops"}, "ops", "base"));
  CHECK_FALSE(InOrder({"base", "ops"}, "base", "ops"));
  for (const auto& [library, families] : Families()) {
    for (const fs::path& source : Sources(library)) {
      const std::string path = fs::relative(source, QUINTET_SOURCE_DIR).string();
      const auto [folder, family] = FamilyOf(path);
      INFO(path);
      const bool known =
          family.empty() || std::find(families.begin(), families.end(), family) != families.end();
      CHECK(known);
      if (MayIncludeLaterFamilies(path)) continue;
      std::ifstream file(source);
      for (std::string line; std::getline(file, line);) {
        const size_t open = line.find("#include \"");
        if (open == std::string::npos) continue;
        const std::string included = line.substr(open + 10, line.rfind('"') - open - 10);
        const auto [to_folder, to_family] = FamilyOf(included);
        if (to_folder != library) continue;
        INFO("includes " << included);
        CHECK(InOrder(families, family, to_family));
      }
    }
  }
}

TEST_CASE("only tests/catch.h includes Catch2") {
  for (const auto& [folder, allowed] : Allowed()) {
    for (const fs::path& path : Sources(folder)) {
      if (fs::relative(path, QUINTET_SOURCE_DIR) == "tests/catch.h") continue;
      std::ifstream file(path);
      const std::vector<std::string> folders = IncludedFolders(file);
      INFO(path.string());
      CHECK(std::find(folders.begin(), folders.end(), "catch2") == folders.end());
    }
  }
}

TEST_CASE("product sources stay within 600 lines") {
  for (const auto& [folder, allowed] : Allowed()) {
    if (folder == "tests") continue;
    for (const fs::path& path : Sources(folder)) {
      // Generated by tools/make_unicode_tables.py.
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
