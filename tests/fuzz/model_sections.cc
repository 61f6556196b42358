// Fuzz target: any bytes as the --config file of `quintet serve`, whose sections [models.NAME] a
// running server reads again on SIGHUP. Checks that accepted sections are the same when they are
// printed and parsed again, and that all other lines stay where they are.
#include "tools/model_sections.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/check.h"

namespace quintet {
namespace {

void CheckEqual(const std::vector<ModelSetting>& a, const std::vector<ModelSetting>& b) {
  QT_CHECK_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) QT_CHECK(a[i].key == b[i].key && a[i].value == b[i].value);
}

}  // namespace
}  // namespace quintet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  const std::string input(reinterpret_cast<const char*>(data), size);
  std::string rest = input;
  const auto sections = TakeModelSections("serve.toml", &rest);
  if (!sections.ok()) return 0;
  QT_CHECK_EQ(std::count(rest.begin(), rest.end(), '\n'),
              std::count(input.begin(), input.end(), '\n'));
  std::string printed = PrintModelSections(*sections);
  const auto again = TakeModelSections("printed", &printed);
  QT_CHECK(again.ok());
  QT_CHECK_EQ(again->size(), sections->size());
  for (size_t i = 0; i < again->size(); ++i) {
    const ModelSection &a = (*sections)[i], &b = (*again)[i];
    QT_CHECK(a.name == b.name);
    CheckEqual(a.settings, b.settings);
    CheckEqual(a.prompts, b.prompts);
    CheckEqual(a.adapters, b.adapters);
  }
  return 0;
}
