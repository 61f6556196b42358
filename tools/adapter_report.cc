#include "tools/adapter_report.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

std::string Counts(const std::map<std::string, int64_t>& counts) {
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) {
    parts.push_back(absl::StrCat(Printable(name), " ", count));
  }
  return parts.empty() ? "none" : absl::StrJoin(parts, ", ");
}

std::string Range(int64_t least, int64_t most) {
  return least == most ? absl::StrCat(most) : absl::StrCat(least, " to ", most);
}

}  // namespace

void PrintField(const char* name, const std::string& value) {
  std::printf("%-16s %s\n", name, value.c_str());
}

void PrintAdapter(const AdapterSummary& s) {
  PrintField("format", s.peft ? "PEFT, LoRA" : "kohya, LoRA");
  if (s.peft) {
    PrintField("base model",
               s.config.base_model.empty() ? "not named" : Printable(s.config.base_model));
    PrintField("alpha",
               absl::StrCat(s.config.alpha, s.config.alphas.empty() ? "" : ", and by module",
                            s.config.rank_stabilized ? "; rank-stabilized" : ""));
    if (!s.config.saved.empty())
      PrintField("saved modules", Printable(absl::StrJoin(s.config.saved, ", ")));
  }
  PrintField("rank", Range(s.least_rank, s.most_rank));
  PrintField("modules", Counts(s.modules));
  if (s.skipped > 0) PrintField("other models", absl::StrCat(s.skipped, " tensors"));
  PrintField("parameters", absl::StrCat(s.parameters));
  PrintField("stored values", Counts(s.stored_values));
}

nlohmann::json AdapterJson(const AdapterSummary& s) {
  nlohmann::json report = {{"format", s.peft ? "peft" : "kohya"},
                           {"least_rank", s.least_rank},
                           {"most_rank", s.most_rank},
                           {"modules", s.modules},
                           {"skipped_tensors", s.skipped},
                           {"parameters", s.parameters},
                           {"stored_values", s.stored_values}};
  if (s.peft) {
    report["base_model"] = s.config.base_model;
    report["alpha"] = s.config.alpha;
    report["rank_stabilized"] = s.config.rank_stabilized;
    report["saved_modules"] = s.config.saved;
  }
  return report;
}

}  // namespace quintet
