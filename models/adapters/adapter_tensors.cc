#include "models/adapters/adapter_tensors.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/string_map.h"

namespace quintet {
namespace {

constexpr size_t kListedAdapterProblems = 8;

// Parts of tensor names by which other kinds of adapters are recognized.
struct OtherKind {
  const char* part;
  const char* what;
};
constexpr OtherKind kOtherKinds[] = {
    {"lora_magnitude_vector", "a DoRA adapter"},
    {"dora_scale", "a DoRA adapter"},
    {"lora_embedding_", "a trained embedding"},
    {"trainable_tokens_", "a trained embedding"},
    {"embed_tokens.", "a trained embedding"},
    {"shared.", "a trained embedding"},
    {"wte.", "a trained embedding"},
    {"hada_", "a LoHa adapter"},
    {"lokr_", "a LoKr adapter"},
    {"ia3_l", "an IA3 adapter"},
    {"oft_", "an OFT adapter"},
    {"boft_", "a BOFT adapter"},
    {"vera_lambda", "a VeRA adapter"},
    {"prompt_embeddings", "prompt tuning"},
    {"lora_E", "an AdaLoRA adapter"},
    {"lora_A.bias", "a trained bias"},
    {"lora_B.bias", "a trained bias"},
    {"lora_mid", "a Tucker decomposition"},
};

const char* OtherKindOf(const std::string& tensor) {
  for (const OtherKind& kind : kOtherKinds) {
    if (absl::StrContains(tensor, kind.part)) return kind.what;
  }
  return nullptr;
}

// Collects all tensors that do not match the model, so that one error lists all of them.
class Problems {
 public:
  void Missing(const std::string& tensor) { missing_.push_back(tensor); }
  void Unexpected(const std::string& tensor) { unexpected_.push_back(Printable(tensor)); }
  void Unsupported(const std::string& tensor, const char* what) {
    if (unsupported_.empty()) unsupported_ = absl::StrCat(Printable(tensor), " is ", what);
  }
  void Wrong(const StoredTensor& tensor, const std::string& expected) {
    wrong_.push_back(absl::StrCat(Printable(tensor.name), " is ",
                                  Describe(tensor.type, tensor.shape), ", expected ", expected));
  }
  // A problem that is not a shape or dtype.
  void WrongValue(const std::string& text) { wrong_.push_back(text); }

  absl::Status Finish() {
    if (!unsupported_.empty()) {
      return absl::UnimplementedError(absl::StrCat(
          "tensor ", unsupported_,
          ", which is not supported; merge the adapter with PEFT (merge_and_unload, then "
          "save_pretrained) and load the merged model"));
    }
    std::vector<std::string> lists;
    List("missing", &missing_, &lists);
    List("unexpected", &unexpected_, &lists);
    List("wrong", &wrong_, &lists);
    if (lists.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the adapter's tensors do not match its configuration and the model: ",
                     absl::StrJoin(lists, "; ")));
  }

 private:
  static void List(const char* what, std::vector<std::string>* names,
                   std::vector<std::string>* lists) {
    if (names->empty()) return;
    std::sort(names->begin(), names->end());
    const size_t shown = std::min(names->size(), kListedAdapterProblems);
    std::string line = absl::StrCat(
        what, ": ",
        absl::StrJoin(names->begin(), names->begin() + static_cast<std::ptrdiff_t>(shown), ", "));
    if (names->size() > shown) absl::StrAppend(&line, " and ", names->size() - shown, " more");
    lists->push_back(std::move(line));
  }

  std::vector<std::string> missing_, unexpected_, wrong_;
  std::string unsupported_;
};

// Tensors by module, indexed like ModuleTable::linear.
class FactorMatcher {
 public:
  FactorMatcher(const ModuleTable& modules, Problems* problems)
      : modules_(modules), problems_(problems), found_(modules.linear.size()) {}

  void CheckFloat(const StoredTensor& tensor) {
    if (!IsFloat(tensor.type)) problems_->Wrong(tensor, "F32, BF16 or F16");
  }

  // Sets member `place` of module `index` to `tensor`; an error if that member is already set.
  void Put(size_t index, const StoredTensor* FactorTensors::*place, const StoredTensor& tensor) {
    CheckFloat(tensor);
    FactorTensors& found = found_[index];
    found.module = &modules_.linear[index];
    if (found.*place != nullptr) {
      return problems_->WrongValue(absl::StrCat(Printable(tensor.name), " and ",
                                                Printable((found.*place)->name),
                                                " are for the same module"));
    }
    found.*place = &tensor;
  }
  bool HasAny(size_t index) const { return found_[index].module != nullptr; }
  FactorTensors& at(size_t index) { return found_[index]; }

  // Checks the shapes of a module's LoRA factors: a [rank, columns] and b [rows, rank].
  void CheckShapes(const FactorTensors& f, int64_t rank) {
    const LinearModule& m = *f.module;
    if (f.a->shape != std::vector<int64_t>{rank, m.columns}) {
      problems_->Wrong(*f.a, absl::StrCat("[", rank, ", ", m.columns, "]"));
    }
    if (f.b->shape != std::vector<int64_t>{m.rows, rank}) {
      problems_->Wrong(*f.b, absl::StrCat("[", m.rows, ", ", rank, "]"));
    }
  }

  std::vector<FactorTensors> Take() {
    std::erase_if(found_, [](const FactorTensors& f) { return f.module == nullptr; });
    return std::move(found_);
  }

 private:
  const ModuleTable& modules_;
  Problems* problems_;
  std::vector<FactorTensors> found_;
};

// ---- PEFT ----

constexpr char kPeftPrefix[] = "base_model.model.";

class PeftMatcher {
 public:
  PeftMatcher(const AdapterConfig& config, const ModuleTable& modules)
      : config_(config), modules_(modules), matcher_(modules, &problems_) {
    for (size_t i = 0; i < modules.linear.size(); ++i) {
      for (const std::string& name : modules.linear[i].spellings) by_name_.emplace(name, i);
    }
  }

  absl::StatusOr<AdapterTensors> Match(const SafetensorsReader& file) {
    QT_RETURN_IF_ERROR(CheckSaved());
    AdapterTensors result;
    for (const StoredTensor& tensor : file.tensors()) AddTensor(tensor, &result);
    for (size_t i = 0; i < modules_.linear.size(); ++i) QT_RETURN_IF_ERROR(CheckModule(i));
    for (const HeadTensor& head : modules_.head) {
      const auto present = [&](const auto& saved) { return saved.first == &head; };
      if (IsSaved(head.module) && std::none_of(result.saved.begin(), result.saved.end(), present)) {
        problems_.Missing(absl::StrCat(kPeftPrefix, head.name));
      }
    }
    QT_RETURN_IF_ERROR(problems_.Finish());
    result.factors = matcher_.Take();
    if (result.factors.empty() && result.saved.empty()) {
      return absl::InvalidArgumentError(
          "adapter_config.json: target_modules: no module of the model has one of these names; is "
          "this the adapter's base model?");
    }
    return result;
  }

 private:
  // Whether modules_to_save names `module` or a module that contains it.
  bool IsSaved(const std::string& module) const {
    for (const std::string& saved : config_.saved) {
      std::string_view name = module;
      while (true) {
        if (EndsWithModule(name, saved)) return true;
        const size_t dot = name.rfind('.');
        if (dot == std::string_view::npos) break;
        name = name.substr(0, dot);
      }
    }
    return false;
  }

  absl::Status CheckSaved() const {
    for (const std::string& saved : config_.saved) {
      // PEFT lists "classifier" and "score" in modules_to_save of every classifier's adapter.
      if (saved == "classifier" || saved == "score") continue;
      const bool is_head =
          std::any_of(modules_.head.begin(), modules_.head.end(), [&](const HeadTensor& head) {
            return EndsWithModule(head.module, saved) || absl::StartsWith(head.module, saved + ".");
          });
      if (is_head) continue;
      return absl::UnimplementedError(absl::StrCat(
          "adapter_config.json: modules_to_save: ", Printable(saved),
          " is not a head of the model, and only heads are replaced; merge the adapter with PEFT "
          "(merge_and_unload, then save_pretrained) and load the merged model"));
    }
    return absl::OkStatus();
  }

  void AddTensor(const StoredTensor& tensor, AdapterTensors* result) {
    absl::string_view name = tensor.name;
    if (!absl::ConsumePrefix(&name, kPeftPrefix)) return AddUnknown(tensor);
    absl::ConsumePrefix(&name, "transformer.");
    const bool is_a = absl::ConsumeSuffix(&name, ".lora_A.weight");
    const bool is_b = !is_a && absl::ConsumeSuffix(&name, ".lora_B.weight");
    if (is_a || is_b) {
      const auto found = by_name_.find(std::string_view(name.data(), name.size()));
      if (found == by_name_.end()) return problems_.Unexpected(tensor.name);
      return matcher_.Put(found->second, is_a ? &FactorTensors::a : &FactorTensors::b, tensor);
    }
    if (absl::ConsumeSuffix(&name, ".base_layer.weight")) return CheckBase(name, tensor, result);
    for (const HeadTensor& head : modules_.head) {
      if (name != head.name || !IsSaved(head.module)) continue;
      matcher_.CheckFloat(tensor);
      if (tensor.shape != head.shape) {
        problems_.Wrong(tensor, absl::StrCat("[", absl::StrJoin(head.shape, ", "), "]"));
      }
      result->saved.emplace_back(&head, &tensor);
      return;
    }
    AddUnknown(tensor);
  }

  // Checks the base model's weight of lm_head, which PEFT saves with the LoRA factors of lm_head.
  // Its values are not read, but another shape means that the adapter is for another model.
  void CheckBase(absl::string_view module, const StoredTensor& tensor, AdapterTensors* result) {
    ++result->skipped;
    for (const HeadTensor& head : modules_.head) {
      if (module != head.module || head.shape.size() != 2) continue;
      if (tensor.shape != head.shape) {
        problems_.Wrong(tensor, absl::StrCat("[", absl::StrJoin(head.shape, ", "), "]"));
      }
      return;
    }
    problems_.Unexpected(tensor.name);
  }

  void AddUnknown(const StoredTensor& tensor) {
    if (const char* what = OtherKindOf(tensor.name))
      return problems_.Unsupported(tensor.name, what);
    problems_.Unexpected(tensor.name);
  }

  // Compares the tensors of module `i` with the configuration of the adapter.
  absl::Status CheckModule(size_t i) {
    const LinearModule& module = modules_.linear[i];
    FactorTensors& found = matcher_.at(i);
    if (!IsTarget(module, matcher_.HasAny(i))) {
      for (const StoredTensor* tensor : {found.a, found.b}) {
        if (tensor != nullptr) problems_.Unexpected(tensor->name);
      }
      return absl::OkStatus();
    }
    const std::string name = absl::StrCat(kPeftPrefix, module.name);
    if (found.a == nullptr) problems_.Missing(name + ".lora_A.weight");
    if (found.b == nullptr) problems_.Missing(name + ".lora_B.weight");
    if (found.a == nullptr || found.b == nullptr) return absl::OkStatus();
    QT_ASSIGN_OR_RETURN(found.rank, config_.RankOf(module.name));
    QT_ASSIGN_OR_RETURN(found.scale, config_.ScaleOf(module.name));
    matcher_.CheckShapes(found, found.rank);
    return absl::OkStatus();
  }

  bool IsTarget(const LinearModule& module, bool present) const {
    if (!config_.Targets(module.name)) return false;
    // "all-linear" means all but the language-model head; whether it includes a task head depends
    // on PEFT's task_type.
    return !config_.all_linear || !module.head || (present && module.parameter != "head.weight");
  }

  const AdapterConfig& config_;
  const ModuleTable& modules_;
  Problems problems_;
  FactorMatcher matcher_;
  StringMap<size_t> by_name_;
};

// ---- kohya ----

// Returns the part of "lora_teN_encoder_block_0_..." after "lora_teN_"; "" for other names.
absl::string_view TextEncoderModule(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "lora_te")) return {};
  while (!name.empty() && name[0] >= '0' && name[0] <= '9') name.remove_prefix(1);
  return absl::ConsumePrefix(&name, "_") ? name : absl::string_view();
}

class KohyaMatcher {
 public:
  explicit KohyaMatcher(const ModuleTable& modules)
      : modules_(modules), matcher_(modules, &problems_) {
    for (size_t i = 0; i < modules.linear.size(); ++i) {
      for (const std::string& name : modules.linear[i].spellings) {
        by_name_.emplace(absl::StrReplaceAll(name, {{".", "_"}}), i);
      }
    }
  }

  absl::StatusOr<AdapterTensors> Match(const SafetensorsReader& file) {
    AdapterTensors result;
    for (const StoredTensor& tensor : file.tensors()) {
      if (!AddTensor(tensor)) ++result.skipped;
    }
    for (size_t i = 0; i < modules_.linear.size(); ++i) CheckModule(i);
    QT_RETURN_IF_ERROR(problems_.Finish());
    result.factors = matcher_.Take();
    if (result.factors.empty()) {
      return absl::InvalidArgumentError(
          "no tensor of the file is for a module of this model; expected names such as "
          "lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight");
    }
    return result;
  }

 private:
  // Returns false for a tensor that belongs to another model of the diffusers pipeline.
  bool AddTensor(const StoredTensor& tensor) {
    const absl::string_view name = tensor.name;
    const size_t dot = std::min(name.find('.'), name.size());
    const absl::string_view module = TextEncoderModule(name.substr(0, dot));
    if (absl::StartsWith(name, "lora_unet_") || absl::StartsWith(module, "text_model_")) {
      return false;
    }
    const auto found = by_name_.find(std::string_view(module.data(), module.size()));
    const absl::string_view part = name.substr(dot);
    if (found == by_name_.end()) {
      problems_.Unexpected(tensor.name);
    } else if (part == ".lora_down.weight") {
      matcher_.Put(found->second, &FactorTensors::a, tensor);
    } else if (part == ".lora_up.weight") {
      matcher_.Put(found->second, &FactorTensors::b, tensor);
    } else if (part == ".alpha") {
      matcher_.Put(found->second, &FactorTensors::alpha, tensor);
    } else if (const char* what = OtherKindOf(tensor.name)) {
      problems_.Unsupported(tensor.name, what);
    } else {
      problems_.Unexpected(tensor.name);
    }
    return true;
  }

  void CheckModule(size_t i) {
    if (!matcher_.HasAny(i)) return;
    FactorTensors& found = matcher_.at(i);
    const StoredTensor& any = found.a != nullptr   ? *found.a
                              : found.b != nullptr ? *found.b
                                                   : *found.alpha;
    const std::string name = Printable(any.name.substr(0, any.name.find('.')));
    if (found.a == nullptr) problems_.Missing(name + ".lora_down.weight");
    if (found.b == nullptr) problems_.Missing(name + ".lora_up.weight");
    if (found.alpha != nullptr && found.alpha->shape != std::vector<int64_t>{} &&
        found.alpha->shape != std::vector<int64_t>{1}) {
      problems_.Wrong(*found.alpha, "[]");
    }
    if (found.a == nullptr || found.b == nullptr) return;
    found.rank = found.a->shape.empty() ? 0 : found.a->shape[0];
    if (found.rank < 1 || found.rank > kMaxAdapterRank) {
      return problems_.Wrong(*found.a, absl::StrCat("a rank from 1 to ", kMaxAdapterRank));
    }
    matcher_.CheckShapes(found, found.rank);
  }

  const ModuleTable& modules_;
  Problems problems_;
  FactorMatcher matcher_;
  StringMap<size_t> by_name_;
};

}  // namespace

absl::StatusOr<AdapterTensors> MatchPeftTensors(const SafetensorsReader& file,
                                                const AdapterConfig& config,
                                                const ModuleTable& modules) {
  return PeftMatcher(config, modules).Match(file);
}

absl::StatusOr<AdapterTensors> MatchKohyaTensors(const SafetensorsReader& file,
                                                 const ModuleTable& modules) {
  return KohyaMatcher(modules).Match(file);
}

}  // namespace quintet
