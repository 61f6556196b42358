#include "models/checkpoint/find_model.h"

#include <stdlib.h>

#include <filesystem>

#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

using Variables = std::map<std::string, std::string>;

// Sets environment variables. The destructor restores their previous values.
class Environment {
 public:
  explicit Environment(const Variables& values) {
    for (const char* name : {"HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE",
                             "XDG_CACHE_HOME", "QUINTET_TEST_ROOT"}) {
      const char* old = getenv(name);
      before_[name] = old == nullptr ? "" : old;
      if (values.count(name) > 0) {
        setenv(name, values.at(name).c_str(), 1);
      } else {
        unsetenv(name);
      }
    }
  }
  Environment(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : before_) {
      if (value.empty()) {
        unsetenv(name.c_str());
      } else {
        setenv(name.c_str(), value.c_str(), 1);
      }
    }
  }

 private:
  std::map<std::string, std::string> before_;
};

// A hub cache with the repository acme/tiny, in the layout of huggingface_hub: the files of a
// snapshot directory are links to blobs.
class HubCache {
 public:
  HubCache() {
    for (const char* folder : {"blobs", "refs", "snapshots"}) fs::create_directories(Repo(folder));
    fs::create_directories(snapshot());
    WriteBytes(Repo("refs/main"), kCommit);
    Link("config.json", FileBytes(GoldenDirectory("t5-v1_1") + "/config.json"));
    Link("model.safetensors", FileBytes(GoldenDirectory("t5-v1_1") + "/model.safetensors"));
  }
  std::string Repo(const std::string& path) const {
    return directory_ / ("hub/models--acme--tiny/" + path);
  }
  std::string snapshot() const { return Repo(std::string("snapshots/") + kCommit); }
  std::string root() const { return directory_.path(); }
  void Link(const std::string& name, const std::string& bytes) const {
    WriteBytes(Repo("blobs/" + name + ".blob"), bytes);
    fs::create_symlink("../../blobs/" + name + ".blob", snapshot() + "/" + name);
  }

 private:
  TemporaryDirectory directory_;
};

std::string Failure(const std::string& model, bool follow_symlinks = false) {
  const auto found = FindModel(model, follow_symlinks);
  return found.ok() ? "found " + *found : std::string(found.status().message());
}

TEST_CASE("Hub ids have the form that huggingface_hub demands") {
  for (const char* text : {"t5-small", "google-t5/t5-small", "google/flan-t5-base", "a/b_c.d"}) {
    INFO(text);
    REQUIRE(ParseHubId(text).has_value());
    CHECK(ParseHubId(text)->repository == text);
    CHECK(ParseHubId(text)->revision.empty());
  }
  CHECK(ParseHubId("a/b@refs/pr/1")->revision == "refs/pr/1");
  CHECK(ParseHubId("a/b@v1.0")->DownloadCommand() == "hf download a/b --revision v1.0");
  for (const char* text : {"", "/", "a/", "/a", "a/b/c", "./a", "../a", "a--b", "a..b", "a b", "-a",
                           "a/b.", "a/b@", "a/b@../x", "a/b@x y", "a/b@.x", "a\nb"}) {
    INFO(text);
    CHECK_FALSE(ParseHubId(text).has_value());
  }
  CHECK_FALSE(ParseHubId(std::string(97, 'a')).has_value());
}

TEST_CASE("The cache's directory follows huggingface_hub's variables in their order") {
  {
    const Environment none(Variables{{"HOME", "/h"}});
    CHECK(HubCacheDirectory() == "/h/.cache/huggingface/hub");
  }
  {
    const Environment xdg(Variables{{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}});
    CHECK(HubCacheDirectory() == "/x/huggingface/hub");
  }
  {
    const Environment home(
        Variables{{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "~/hf"}});
    CHECK(HubCacheDirectory() == "/h/hf/hub");
  }
  {
    const Environment old(Variables{{"HF_HOME", "/f"}, {"HUGGINGFACE_HUB_CACHE", "/o"}});
    CHECK(HubCacheDirectory() == "/o");
  }
  {
    const Environment hub(Variables{{"HF_HUB_CACHE", "${QUINTET_TEST_ROOT}/c$NO_SUCH_VARIABLE_"},
                                    {"QUINTET_TEST_ROOT", "/r"},
                                    {"HUGGINGFACE_HUB_CACHE", "/o"}});
    CHECK(HubCacheDirectory() == "/r/c$NO_SUCH_VARIABLE_");
  }
}

TEST_CASE("A hub id is found by its main revision, a branch, a tag or a commit") {
  const HubCache cache;
  const Environment environment(Variables{{"HF_HOME", cache.root()}});
  CHECK(*FindModel("acme/tiny") == cache.snapshot());
  CHECK(*FindModel("acme/tiny@main") == cache.snapshot());
  CHECK(*FindModel(std::string("acme/tiny@") + kCommit) == cache.snapshot());
  fs::create_directories(cache.Repo("refs/refs/pr"));
  WriteBytes(cache.Repo("refs/refs/pr/1"), std::string(kCommit) + "\n");
  CHECK(*FindModel("acme/tiny@refs/pr/1") == cache.snapshot());
  CHECK(HubIdOfSnapshot(cache.snapshot())->repository == "acme/tiny");
  CHECK_FALSE(HubIdOfSnapshot(GoldenDirectory("gpt2")).has_value());

  CHECK_THAT(Failure("acme/tiny@v2"), ContainsSubstring("which has: main, refs"));
  CHECK_THAT(Failure("acme/tiny@v2"), ContainsSubstring("hf download acme/tiny --revision v2"));
  CHECK_THAT(Failure("acme/other"), ContainsSubstring("hf download acme/other"));
  CHECK(absl::IsNotFound(FindModel("acme/other").status()));
  WriteBytes(cache.Repo("refs/evil"), "../../../etc");
  CHECK_THAT(Failure("acme/tiny@evil"), ContainsSubstring("expected a commit"));
  WriteBytes(cache.Repo("refs/main"), "junk");
  CHECK_THAT(
      Failure("acme/tiny"),
      ContainsSubstring("names the snapshot junk, which does not exist: the ref is damaged") &&
          ContainsSubstring("hf download acme/tiny"));
}

TEST_CASE("A directory is returned as it is, even if its name is also a hub id") {
  CHECK(*FindModel(GoldenDirectory("t5-v1_1")) == GoldenDirectory("t5-v1_1"));
  CHECK_THAT(Failure("/no/such/place"), ContainsSubstring("no such directory"));
  CHECK_THAT(Failure(GoldenDirectory("t5-v1_1") + "/config.json"),
             ContainsSubstring("is not a directory"));
  CHECK_THAT(Failure(""), ContainsSubstring("got \"\""));
}

TEST_CASE("Links within the repository's folder of the cache are followed, no others") {
  const HubCache cache;
  TemporaryDirectory outside;
  WriteBytes(outside / "tokenizer.json", "{}");
  const std::string link = cache.snapshot() + "/tokenizer.json";
  fs::create_symlink(outside / "tokenizer.json", link);
  CHECK_THAT(Failure(cache.snapshot()), ContainsSubstring("tokenizer.json: is a symbolic link that "
                                                          "leaves"));
  CHECK(Failure(cache.snapshot(), true) == "found " + cache.snapshot());
  fs::remove(link);

  // A sibling directory is outside the repository too, even if its name begins with the
  // repository's name.
  const std::string neighbour = cache.root() + "/hub/models--acme--tiny2";
  fs::create_directories(neighbour);
  WriteBytes(neighbour + "/secret.json", "{}");
  fs::create_symlink(neighbour + "/secret.json", link);
  CHECK_THAT(Failure(cache.snapshot()), ContainsSubstring("leaves"));
  fs::remove(link);

  fs::create_directories(cache.snapshot() + "/1_Pooling");
  fs::create_symlink(outside / "tokenizer.json", cache.snapshot() + "/1_Pooling/config.json");
  CHECK_THAT(Failure(cache.snapshot()), ContainsSubstring("config.json: is a symbolic link"));
  fs::remove_all(cache.snapshot() + "/1_Pooling");

  fs::remove(cache.Repo("blobs/model.safetensors.blob"));
  CHECK_THAT(Failure(cache.snapshot()),
             ContainsSubstring("model.safetensors: is a symbolic link to a file that does not "
                               "exist; complete the download with: hf download acme/tiny"));

  TemporaryDirectory plain;
  fs::create_symlink(GoldenDirectory("gpt2") + "/config.json", plain / "config.json");
  CHECK_THAT(Failure(plain.path()), ContainsSubstring("config.json: is a symbolic link; use a "
                                                      "copy"));
}

}  // namespace
}  // namespace quintet
