#include "tools/model_sections.h"

#include "tests/catch.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("sections of models are taken out of the text, whose lines keep their numbers") {
  std::string text =
      "num-beams = 4\n"
      "[models.g2p]  # a comment\r\n"
      "max_input_tokens = 512\r\n"
      "\n"
      "# dtype = \"f32\"\n"
      "dtype = 'int8' # another\n"
      "[serve]\n"
      "threads = 2\n"
      "[ models . \"intfloat/e5-v1.1\" . prompts ]\n"
      "query = \"query: \"\n"
      "\"a b\" = \"tab\\t \\u00e4\\\\ \\\"x\\\" #\"\n"
      "[models.'intfloat/e5-v1.1']\n"
      "ignore-generation-fields = true\n"
      "prefill-share = -1.5e+3";
  const auto sections = TakeModelSections("f", &text);
  REQUIRE(sections.ok());
  CHECK(text == "num-beams = 4\n\n\n\n\n\n[serve]\nthreads = 2\n\n\n\n\n\n");
  REQUIRE(sections->size() == 2);
  const ModelSection& g2p = (*sections)[0];
  CHECK(g2p.name == "g2p");
  CHECK(g2p.where == "f:2: [models.g2p]");
  REQUIRE(g2p.settings.size() == 2);
  CHECK(g2p.settings[0].key == "max-input-tokens");
  CHECK(g2p.settings[0].value == "512");
  CHECK(g2p.settings[0].where == "f:3: models.g2p.max_input_tokens");
  CHECK(g2p.settings[1].key == "dtype");
  CHECK(g2p.settings[1].value == "int8");
  CHECK(g2p.prompts.empty());
  const ModelSection& e5 = (*sections)[1];
  CHECK(e5.name == "intfloat/e5-v1.1");
  REQUIRE(e5.prompts.size() == 2);
  CHECK(e5.prompts[0].value == "query: ");
  CHECK(e5.prompts[1].key == "a b");
  CHECK(e5.prompts[1].value == "tab\t \u00e4\\ \"x\" #");
  CHECK(e5.prompts[1].where == "f:11: models.intfloat/e5-v1.1.prompts.a b");
  REQUIRE(e5.settings.size() == 2);
  CHECK(e5.settings[0].value == "true");
  CHECK(e5.settings[1].value == "-1.5e+3");

  std::string printed = PrintModelSections(*sections);
  const auto again = TakeModelSections("f", &printed);
  REQUIRE(again.ok());
  CHECK(PrintModelSections(*again) == PrintModelSections(*sections));
  CHECK((*again)[1].prompts[1].value == e5.prompts[1].value);
}

TEST_CASE("a text without sections of models is unchanged") {
  for (const char* unchanged : {"", "\n", "a = 1\n[serve]\nb = [1,\n2]\n", "[modelss]\nx = 1\n",
                                "[models-x]\ny = 2\n", "models = 1\n"}) {
    std::string text = unchanged;
    const auto sections = TakeModelSections("f", &text);
    REQUIRE(sections.ok());
    CHECK(sections->empty());
    CHECK(text == unchanged);
  }
  CHECK(PrintModelSections({}).empty());
}

TEST_CASE("errors of sections of models name line, key and what was expected") {
  const struct {
    const char* text;
    const char* error;
  } cases[] = {
      {"[models]", "f:1: expected [models.NAME]"},
      {"[models.]", "f:1: expected a key of letters"},
      {"[models.\"\"]", "f:1: expected [models.NAME]"},
      {"[models.a/b]", "f:1: expected ] at the end of the section's name; quote a name"},
      {"[models.a.b]", "f:1: expected [models.NAME], [models.NAME.prompts] or "},
      {"[models.a", "f:1: expected ]"},
      {"[models.a] x", "f:1: unexpected text after the value: x"},
      {"[models.\"a]", "f:1: the string does not end on its line"},
      {"[models.a]\n[models.a]", "f:2: [models.a] is in the file twice"},
      {"[models.a]\n[models.\"a\"]", "f:2: [models.a] is in the file twice"},
      {"[models.a.prompts]\n[models.a.prompts]", "f:2: [models.a.prompts] is in the file twice"},
      {"[models.a]\n\ndtype", "f:3: models.a.dtype: expected KEY = VALUE"},
      {"[models.a]\n= 1", "f:2: expected a key"},
      {"[models.a]\ndtype =", "f:2: models.a.dtype: expected a string in quotes, a number"},
      {"[models.a]\ndtype = int8", "f:2: models.a.dtype: expected a string in quotes, a number"},
      {"[models.a]\ndtype = [1]", "f:2: models.a.dtype: expected a string in quotes, a number"},
      {"[models.a]\nprompts = { a = \"b\" }", "f:2: models.a.prompts: expected a string"},
      {"[models.a]\ndtype = \"int8", "f:2: models.a.dtype: the string does not end"},
      {"[models.a]\ndtype = \"\"\"int8\"\"\"", "f:2: models.a.dtype: expected a string on one"},
      {"[models.a]\ndtype = \"a\\x\"", "f:2: models.a.dtype: expected one of"},
      {"[models.a]\ndtype = \"a\\", "f:2: models.a.dtype: expected one of"},
      {"[models.a]\ndtype = \"\\ud800\"", "f:2: models.a.dtype: \\ud800 is not a character"},
      {"[models.a]\ndtype = \"\\u12\"", "is not a character"},
      {"[models.a]\ndtype = 1 2", "f:2: models.a.dtype: unexpected text after the value: 2"},
      {"[models.a]\nmax-queue = 1\nmax_queue = 2", "f:3: models.a.max_queue: is set twice"},
      {"[models.a.prompts]\nq = \"\xff\"", "f:2: the text is not UTF-8"},
  };
  for (const auto& c : cases) {
    INFO(c.text);
    std::string text = c.text;
    const auto sections = TakeModelSections("f", &text);
    REQUIRE_FALSE(sections.ok());
    CHECK_THAT(std::string(sections.status().message()), ContainsSubstring(c.error));
  }
}

}  // namespace
}  // namespace quintet
