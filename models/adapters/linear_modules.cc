#include "models/adapters/linear_modules.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace quintet {
namespace {

bool IsHeadParameter(const std::string& parameter) {
  return parameter == "head.weight" || absl::StartsWith(parameter, "classifier");
}

// Whether Hugging Face's class of this model keeps the layers in a member `transformer`.
bool HasTransformerPrefix(const ModelConfig& config) {
  if (config.family == Family::kFat5) return false;
  const bool classifier =
      config.head == Head::kSequenceClassification || config.head == Head::kTokenClassification;
  return classifier || (config.family == Family::kGpt2 && config.head == Head::kLanguageModel);
}

std::string ModuleOf(const std::string& tensor) {
  return std::string(absl::StripSuffix(absl::StripSuffix(tensor, ".weight"), ".bias"));
}

}  // namespace

ModuleTable ListModules(const ModelConfig& config) {
  // For a converted model the table would list only Quintet's own names. Hugging Face's names are
  // in the table of the same model before its conversion.
  ModelConfig source = config;
  source.converted_dtype.clear();
  WeightDestinations unused;
  const std::vector<WeightSlot> slots = BuildWeightTable(source, &unused);
  std::set<std::string> tables;  // names of embeddings, which a tied head also has
  for (const WeightSlot& slot : slots) {
    if (slot.kind != WeightKind::kTable) continue;
    for (const WeightSource& s : slot.sources) tables.insert(s.names.begin(), s.names.end());
  }
  const char* prefix = HasTransformerPrefix(config) ? "transformer." : "";
  ModuleTable table;
  for (const WeightSlot& slot : slots) {
    const bool head = IsHeadParameter(slot.name);
    if (head) {
      const std::string& name = slot.sources[0].names[0];
      table.head.push_back({ModuleOf(name), name, slot.name, slot.shape});
    }
    if (slot.kind != WeightKind::kMatrix) continue;
    int64_t row = 0;
    for (const WeightSource& s : slot.sources) {
      LinearModule module;
      for (const std::string& name : s.names) {
        if (!tables.contains(name)) module.spellings.push_back(ModuleOf(name));
      }
      module.name = absl::StrCat(head ? "" : prefix, module.spellings[0]);
      module.parameter = slot.name;
      module.row = row;
      module.rows = s.rows;
      module.columns = slot.shape[1];
      module.head = head;
      row += s.rows;
      table.linear.push_back(std::move(module));
    }
  }
  return table;
}

}  // namespace quintet
