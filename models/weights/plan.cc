#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/string_map.h"
#include "models/weights/table.h"
#include "models/weights/weights_families.h"

namespace quintet {
namespace {

constexpr size_t kListedProblems = 8;

// Finds the checkpoint's tensor of each parameter, by name, and collects all mismatches.
class WeightMatcher {
 public:
  WeightMatcher(const WeightFiles& files, const ModelConfig& config)
      : files_(files), converted_(config.converted()) {}

  absl::Status Index() {
    for (const StoredTensor& t : files_.tensors()) {
      absl::string_view name = t.name;
      if (!converted_) absl::ConsumePrefix(&name, "transformer.");
      if (!by_name_.emplace(std::string(name), &t).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", Printable(t.name), " exists both with and without the prefix transformer."));
      }
    }
    return absl::OkStatus();
  }

  const StoredTensor* Find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  PlannedWeight Plan(const WeightSlot& slot) {
    PlannedWeight planned;
    int64_t row = 0;
    for (const WeightSource& source : slot.sources) {
      WeightPiece piece = {nullptr, nullptr, row, source.rows, source.transposed};
      row += source.rows;
      for (const std::string& name : source.names) {
        const StoredTensor* t = Find(name);
        if (t == nullptr) continue;
        used_.insert(name);
        if (piece.values == nullptr) piece.values = t;
        // Do not stop at the first name that is found: all aliases of the parameter that the files
        // contain count as used, so that they are not reported as unexpected.
      }
      if (piece.values == nullptr) {
        missing_.push_back(source.names[0]);
        continue;
      }
      Check(slot, source, &piece);
      planned.pieces.push_back(piece);
    }
    planned.slot = slot;
    return planned;
  }

  absl::Status Finish(const ModelConfig& config) {
    std::vector<std::string> extra;
    for (const auto& [name, tensor] : by_name_) {
      if (used_.contains(name) || (!converted_ && Ignored(config, name))) continue;
      if (!converted_) {
        QT_RETURN_IF_ERROR(CheckT5Layout(config, name));
      }
      extra.push_back(name);
    }
    std::vector<std::string> problems;
    List("missing", missing_, &problems);
    List("unexpected", extra, &problems);
    List("wrong", wrong_, &problems);
    if (problems.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the weights do not match config.json (", FamilyName(config.family), ", ",
                     HeadName(config.head), "): ", absl::StrJoin(problems, "; ")));
  }

 private:
  static std::string ScalesName(const std::string& name) {
    return absl::StrCat(absl::StripSuffix(name, ".weight"), ".scales");
  }

  static bool Ignored(const ModelConfig& config, const std::string& name) {
    return config.family == Family::kGpt2 ? IsIgnoredGpt2Tensor(name)
                                          : IsIgnoredT5Tensor(config, name);
  }

  void Check(const WeightSlot& slot, const WeightSource& source, WeightPiece* piece) {
    const StoredTensor& t = *piece->values;
    std::vector<int64_t> shape = slot.shape;
    if (!shape.empty()) shape[0] = source.rows;
    if (source.transposed) std::swap(shape[0], shape[1]);
    if (t.shape != shape) {
      wrong_.push_back(absl::StrCat(Printable(t.name), " is ", Describe(t.type, t.shape),
                                    ", expected [", absl::StrJoin(shape, ", "), "]"));
      return;
    }
    const bool quantized = slot.kind == WeightKind::kMatrix &&
                           (t.type == StoredType::kI8 || t.type == StoredType::kF8E4M3) &&
                           (converted_ || Find(ScalesName(t.name)) != nullptr);
    const bool integer =
        slot.shape.empty() && (t.type == StoredType::kI64 || t.type == StoredType::kI32);
    if (!IsFloat(t.type) && !quantized && !integer) {
      wrong_.push_back(absl::StrCat(
          Printable(t.name), " is ", Describe(t.type, t.shape), ", expected ",
          converted_ && slot.kind == WeightKind::kMatrix ? "F32, BF16, F16, I8 or F8_E4M3"
                                                         : "F32, BF16 or F16"));
      return;
    }
    if (quantized) FindScales(source.rows, piece);
  }

  void FindScales(int64_t rows, WeightPiece* piece) {
    const std::string name = ScalesName(piece->values->name);
    piece->scales = Find(name);
    if (piece->scales == nullptr) {
      missing_.push_back(name);
      return;
    }
    used_.insert(name);
    const StoredTensor& scales = *piece->scales;
    if (scales.type != StoredType::kF32 || scales.shape != std::vector<int64_t>{rows}) {
      wrong_.push_back(absl::StrCat(Printable(name), " is ", Describe(scales.type, scales.shape),
                                    ", expected F32 [", rows, "]"));
    }
  }

  static void List(const char* what, std::vector<std::string> names,
                   std::vector<std::string>* problems) {
    if (names.empty()) return;
    std::sort(names.begin(), names.end());
    const size_t shown = std::min(names.size(), kListedProblems);
    for (size_t i = 0; i < shown; ++i) {
      // Entries of the list "wrong" are sentences that begin with a tensor name; the name was made
      // printable when the entry was created.
      if (absl::string_view(what) != "wrong") names[i] = Printable(names[i]);
    }
    std::string line = absl::StrCat(
        what, ": ",
        absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
    if (names.size() > shown) absl::StrAppend(&line, " and ", names.size() - shown, " more");
    problems->push_back(line);
  }

  const WeightFiles& files_;
  const bool converted_;
  StringMap<const StoredTensor*> by_name_;
  std::unordered_set<std::string> used_;
  std::vector<std::string> missing_, wrong_;
};

// True if matrices a and b, of the same shape, have equal values, whatever their dtypes.
absl::StatusOr<bool> SameValues(const WeightFiles& files, const PlannedWeight& a,
                                const PlannedWeight& b) {
  constexpr int64_t kRows = 64;
  const int64_t columns = a.columns();
  std::vector<char> staging_a(static_cast<size_t>(StagingBytes(a, kRows)));
  std::vector<char> staging_b(static_cast<size_t>(StagingBytes(b, kRows)));
  std::vector<float> values_a(static_cast<size_t>(kRows * columns)), values_b(values_a.size());
  for (int64_t row = 0; row < a.rows(); row += kRows) {
    const int64_t end = std::min(a.rows(), row + kRows);
    const auto copy_to = [&](std::vector<float>* to) {
      return [&, to](int64_t at, const Tensor& values, const Tensor&) {
        ConvertToF32(values.data, values.dtype, values.elements(),
                     to->data() + (at - row) * columns);
      };
    };
    QT_RETURN_IF_ERROR(VisitRows(files, a, row, end, staging_a.data(), copy_to(&values_a)));
    QT_RETURN_IF_ERROR(VisitRows(files, b, row, end, staging_b.data(), copy_to(&values_b)));
    const auto used = static_cast<std::ptrdiff_t>((end - row) * columns);
    if (!std::equal(values_a.begin(), values_a.begin() + used, values_b.begin())) return false;
  }
  return true;
}

const PlannedWeight* FindSlot(const std::vector<PlannedWeight>& plan, const std::string& name) {
  for (const PlannedWeight& p : plan) {
    if (p.slot.name == name) return &p;
  }
  return nullptr;
}

// How lm_head.weight of a T5, mT5, UMT5 or LongT5 relates to the embedding.
enum class StoredHead : uint8_t { kAbsent, kEqual, kDiffers };

absl::StatusOr<StoredHead> CompareHead(const WeightFiles& files,
                                       const std::vector<PlannedWeight>& plan) {
  const PlannedWeight* head = FindSlot(plan, "head.weight");
  const PlannedWeight* embedding = FindSlot(plan, "embedding.weight");
  QT_CHECK(head != nullptr && embedding != nullptr);
  if (head->pieces[0].values->name != "lm_head.weight") return StoredHead::kAbsent;
  QT_ASSIGN_OR_RETURN(const bool same, SameValues(files, *head, *embedding));
  return same ? StoredHead::kEqual : StoredHead::kDiffers;
}

// Explains why the checkpoint is ambiguous about whether to scale logits. Returns an empty string
// if it is not ambiguous. Even if it is, the rule in models/README.md decides whether to scale.
std::string LogitScaleAmbiguity(const ModelConfig& config, StoredHead head) {
  const std::optional<bool> flag = config.tie_word_embeddings;
  const std::string is = absl::StrCat("tie_word_embeddings is ", !flag   ? "absent"
                                                                 : *flag ? "true"
                                                                         : "false");
  const bool tied = flag.value_or(config.family != Family::kMT5);  // transformers' defaults
  if (!tied && head == StoredHead::kAbsent) {
    return absl::StrCat(is, ", but lm_head.weight is not stored, so the embedding is the head");
  }
  if (config.family == Family::kMT5) {
    // transformers 5.x always writes tie_word_embeddings = true; 4.x writes true only if the
    // embedding is the head. If the value is not true, 4.x has therefore written the files. If it
    // is true and the head differs from the embedding, 5.x has written them. Both cases are
    // unambiguous.
    if (!tied || head == StoredHead::kDiffers) return "";
    return absl::StrCat(is,
                        ": transformers 4.x multiplies the logits by d_model^-0.5, 5.x does not");
  }
  if (tied) {
    if (head != StoredHead::kDiffers) return "";
    return absl::StrCat(is, ", but lm_head.weight differs from the embedding");
  }
  if (config.scales_as_t5()) return "";
  return absl::StrCat(is, ": transformers 5.x multiplies the logits by d_model^-0.5, 4.x does not");
}

// Sets config->scale_logits if config.json does not determine it, and config->logit_scale_warning
// if the checkpoint is ambiguous about it.
absl::Status DecideLogitScale(const WeightFiles& files, const std::vector<PlannedWeight>& plan,
                              ModelConfig* config) {
  if (!config->is_t5() || config->scale_logits_given || config->head != Head::kLanguageModel) {
    return absl::OkStatus();
  }
  QT_ASSIGN_OR_RETURN(const StoredHead head, CompareHead(files, plan));
  if (!config->scale_logits) config->scale_logits = head == StoredHead::kAbsent;
  const std::string ambiguity = LogitScaleAmbiguity(*config, head);
  if (ambiguity.empty()) return absl::OkStatus();
  const char* chosen = *config->scale_logits ? "true" : "false";
  config->logit_scale_warning =
      absl::StrCat("config.json: ", ambiguity, "; running with \"scale_decoder_outputs\": ", chosen,
                   " (models/README.md, Logit scale). Set scale_decoder_outputs in config.json to ",
                   chosen, " to keep this, or to ", *config->scale_logits ? "false" : "true",
                   " if the model was trained otherwise");
  return absl::OkStatus();
}

}  // namespace

int64_t PlannedWeight::columns() const {
  int64_t columns = 1;
  for (size_t i = 1; i < slot.shape.size(); ++i) columns *= slot.shape[i];
  return columns;
}

absl::StatusOr<std::vector<PlannedWeight>> PlanWeights(const WeightFiles& files,
                                                       ModelConfig* config,
                                                       WeightDestinations* destinations) {
  WeightMatcher matcher(files, *config);
  QT_RETURN_IF_ERROR(matcher.Index());
  std::vector<PlannedWeight> plan;
  for (const WeightSlot& slot : BuildWeightTable(*config, destinations))
    plan.push_back(matcher.Plan(slot));
  QT_RETURN_IF_ERROR(matcher.Finish(*config));
  QT_RETURN_IF_ERROR(DecideLogitScale(files, plan, config));
  return plan;
}

std::string QuantizedChange(const std::vector<PlannedWeight>& plan, const WeightChanges& changes) {
  for (const PlannedWeight& weight : plan) {
    const bool quantized =
        std::any_of(weight.pieces.begin(), weight.pieces.end(),
                    [](const WeightPiece& piece) { return piece.scales != nullptr; });
    if (quantized && changes.Change(weight.slot.name)) return weight.slot.name;
  }
  return "";
}

}  // namespace quintet
