#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/decoder.h"
#include "engine/step_engine.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

absl::Status CheckLimits(const EngineLimits& limits, const ModelLimits& model_limits) {
  const struct {
    const char* field;
    int64_t value, low;
  } checks[] = {
      {"max_queue_requests", limits.max_queue_requests, 1},
      {"max_queue_tokens", limits.max_queue_tokens, 1},
      {"max_running_sequences", limits.max_running_sequences, 1},
      {"admission_sequences", limits.admission_sequences, 1},
      {"max_admission_delay_steps", limits.max_admission_delay_steps, 0},
      {"encoder_cache_bytes", limits.encoder_cache_bytes, 0},
      {"max_step_tokens", model_limits.max_step_tokens, 1},
      {"max_step_sequences", model_limits.max_step_sequences, 1},
  };
  for (const auto& check : checks) {
    if (check.value < check.low) {
      return absl::InvalidArgumentError(
          absl::StrCat(check.field, ": ", check.value, " is less than ", check.low));
    }
  }
  if (!(limits.prefill_share >= 0.0 && limits.prefill_share <= 1000.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill_share: ", limits.prefill_share, " is not in [0, 1000]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Model* model, const Tokenizer* tokenizer,
                                                       const EngineLimits& limits, Clock clock,
                                                       StepObserver* observer) {
  const ModelLimits& model_limits = model->limits();
  QT_RETURN_IF_ERROR(CheckLimits(limits, model_limits));
  QT_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder,
                      Decoder::Create(model, limits.async_scheduling));
  Capacity capacity;
  // In each step every running sequence has one new token, which counts towards max_step_tokens;
  // that limit therefore also bounds the number of running sequences.
  capacity.running_sequences =
      std::min({limits.max_running_sequences, model_limits.max_step_sequences,
                model_limits.max_step_tokens});
  capacity.pages = model_limits.cache_pages;
  capacity.page_size = model_limits.page_size;
  capacity.page_bytes = model->memory().cache / std::max<int64_t>(model_limits.cache_pages, 1);
  capacity.encode_tokens = model_limits.max_encode_tokens;
  capacity.queue_tokens = limits.max_queue_tokens;
  capacity.adapters = model->adapter_slots();
  return CatchOutOfMemory([&]() -> absl::StatusOr<std::unique_ptr<Engine>> {
    return std::make_unique<StepEngine>(StepEngineParts{model, tokenizer, limits, std::move(clock),
                                                        observer, std::move(decoder), capacity});
  });
}

}  // namespace quintet
