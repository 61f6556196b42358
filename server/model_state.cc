#include "server/model_state.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace quintet {

const char* ModelStateName(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return "UNLOADED";
    case ModelState::kLoading:
      return "LOADING";
    case ModelState::kServing:
      return "SERVING";
    case ModelState::kReplacing:
      return "REPLACING";
    case ModelState::kDraining:
      return "DRAINING";
    case ModelState::kIdle:
      return "IDLE";
    case ModelState::kFailed:
      return "FAILED";
  }
  return "";
}

bool ModelLifecycle::busy() const {
  return state_ == ModelState::kLoading || state_ == ModelState::kReplacing ||
         state_ == ModelState::kDraining;
}

absl::Status ModelLifecycle::CheckNotBusy() const {
  if (!busy()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("another operation on this model is in progress: it is ",
                                         ModelStateName(state_), "; retry when it has ended"));
}

absl::Status ModelLifecycle::BeginLoad() {
  QT_RETURN_IF_ERROR(CheckNotBusy());
  if (state_ == ModelState::kServing) {
    return absl::FailedPreconditionError("the model is loaded; reload it to read its files again");
  }
  state_ = ModelState::kLoading;  // of an idle model calls keep waiting
  return absl::OkStatus();
}

absl::Status ModelLifecycle::BeginReplace() {
  QT_RETURN_IF_ERROR(CheckNotBusy());
  if (state_ != ModelState::kServing) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model is not loaded: it is ", ModelStateName(state_), "; load it"));
  }
  state_ = ModelState::kReplacing;
  return absl::OkStatus();
}

absl::Status ModelLifecycle::BeginUnload() {
  QT_RETURN_IF_ERROR(CheckNotBusy());
  if (state_ == ModelState::kUnloaded) {
    return absl::FailedPreconditionError("the model is not loaded");
  }
  if (state_ == ModelState::kServing) Retire();
  calls_wait_ = false;
  state_ = retired_ > 0 ? ModelState::kDraining : ModelState::kUnloaded;
  return absl::OkStatus();
}

absl::Status ModelLifecycle::Demand() {
  QT_RETURN_IF_ERROR(CheckNotBusy());
  if (state_ != ModelState::kIdle && state_ != ModelState::kFailed) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model is not idle: it is ", ModelStateName(state_)));
  }
  state_ = ModelState::kLoading;
  calls_wait_ = true;
  return absl::OkStatus();
}

absl::Status ModelLifecycle::GoIdle() {
  QT_RETURN_IF_ERROR(CheckNotBusy());
  if (state_ != ModelState::kServing) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model does not serve: it is ", ModelStateName(state_)));
  }
  Retire();
  state_ = ModelState::kIdle;
  calls_wait_ = true;
  return absl::OkStatus();
}

void ModelLifecycle::Retire() {
  QT_CHECK(serving_ != 0);
  serving_ = 0;
  ++retired_;
}

void ModelLifecycle::BeginDrain() {
  QT_CHECK(state_ == ModelState::kReplacing);
  Retire();
  state_ = ModelState::kDraining;
  calls_wait_ = true;
}

void ModelLifecycle::Loaded() {
  QT_CHECK(state_ == ModelState::kLoading || state_ == ModelState::kReplacing);
  if (state_ == ModelState::kReplacing) Retire();
  serving_ = ++last_version_;
  state_ = ModelState::kServing;
  calls_wait_ = false;
}

void ModelLifecycle::LoadFailed() {
  QT_CHECK(state_ == ModelState::kLoading || state_ == ModelState::kReplacing);
  state_ = state_ == ModelState::kReplacing ? ModelState::kServing : ModelState::kFailed;
  calls_wait_ = false;
}

void ModelLifecycle::Kept() {
  QT_CHECK(state_ == ModelState::kReplacing);
  state_ = ModelState::kServing;
}

void ModelLifecycle::Freed() {
  QT_CHECK(retired_ > 0);
  if (--retired_ > 0 || state_ != ModelState::kDraining) return;
  state_ = calls_wait_ ? ModelState::kLoading : ModelState::kUnloaded;
}

}  // namespace quintet
