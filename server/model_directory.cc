#include "server/model_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quintet {
namespace {

// Returns names of the models for error messages, at most 512 bytes.
std::string ServedNames(const ModelDirectory::Models& models) {
  constexpr size_t kMostBytes = 512;
  std::string names;
  for (const auto& model : models) {
    if (names.size() + model->name().size() > kMostBytes) return absl::StrCat(names, ", ...");
    absl::StrAppend(&names, names.empty() ? "" : ", ", model->name());
  }
  return names;
}

}  // namespace

ModelDirectory::Models ModelDirectory::models() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return models_;
}

size_t ModelDirectory::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return models_.size();
}

void ModelDirectory::Set(Models models) {
  std::lock_guard<std::mutex> lock(mutex_);
  models_.swap(models);
}

absl::StatusOr<std::shared_ptr<ServedModel>> ModelDirectory::Find(const std::string& model) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (model.empty()) {
    if (models_.size() == 1) return models_[0];
    return absl::InvalidArgumentError(
        absl::StrCat("call.model: must name one of the ", models_.size(),
                     " models served, got none; served: ", ServedNames(models_)));
  }
  for (const auto& served : models_) {
    if (served->name() == model) return served;
  }
  return absl::NotFoundError(
      absl::StrCat("call.model: no model of this name is served; served: ", ServedNames(models_)));
}

absl::StatusOr<std::shared_ptr<ServedModel>> ModelDirectory::FindWithAdapter(
    const std::string& model, std::string* adapter) const {
  absl::StatusOr<std::shared_ptr<ServedModel>> found = Find(model);
  const size_t colon = model.rfind(':');
  if (found.ok() || colon == std::string::npos || colon == 0) return found;
  const auto base = Find(model.substr(0, colon));
  if (!base.ok()) return found;
  *adapter = model.substr(colon + 1);
  return base;
}

bool ModelDirectory::accepts() const {
  const Models all = models();
  return std::any_of(all.begin(), all.end(), [](const auto& model) { return model->accepts(); });
}

void ModelDirectory::ExpireWaits(int64_t now_us) const {
  for (const auto& model : models()) model->ExpireWaits(now_us);
}

void ModelDirectory::Drain() const {
  for (const auto& model : models()) model->Drain();
}

}  // namespace quintet
