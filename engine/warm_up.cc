#include "engine/warm_up.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "engine/batch_builder.h"
#include "engine/logits_rows.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/gemm_choices_file.h"
#include "kernels/linear/gemm_tuning.h"
#include "kernels/sampling/selection.h"

namespace quintet {
namespace {

// Number of tokens of each dummy input and prompt.
int64_t SequenceTokens(const ModelConfig& config) {
  constexpr int64_t kTokens = 128;
  return config.max_positions > 0 ? std::min(kTokens, config.max_positions) : kTokens;
}

// Returns the numbers of rows or tokens in [least, most] to which steps and batches are padded:
// powers of two and, above 16, the midpoints between them (24, 48, ..). The last one is `most`.
std::vector<int64_t> Counts(int64_t least, int64_t most) {
  std::vector<int64_t> counts;
  for (int64_t n = 1; n < most; n *= 2) {
    if (n >= least) counts.push_back(n);
    const int64_t between = n + n / 2;
    if (n >= 16 && between >= least && between < most) counts.push_back(between);
  }
  counts.push_back(most);
  return counts;
}

// Returns those of `counts` (ascending) that the warm-up runs: the two largest if `shapes` is
// kLargest, otherwise all.
std::vector<int64_t> Chosen(WarmUpShapes shapes, std::vector<int64_t> counts) {
  constexpr size_t kLargest = 2;
  if (shapes == WarmUpShapes::kLargest && counts.size() > kLargest) {
    counts.erase(counts.begin(), counts.end() - kLargest);
  }
  return counts;
}

class WarmUpRun {
 public:
  WarmUpRun(Model* model, Tensor logits)
      : model_(model),
        sequence_tokens_(SequenceTokens(model->config())),
        logits_(logits),
        batch_(model->limits(), &model->stream().pool()),
        tokens_(static_cast<size_t>(model->limits().max_encode_tokens), 1),
        slots_(tokens_.size(), 0) {}

  // Decodes one token for each of `rows` sequences.
  void Step(int64_t rows) {
    batch_.Clear();
    for (int64_t i = 0; i < rows; ++i) {
      BeginGroup(i);
      batch_.AddSequence(First(tokens_, 1), First(slots_, 1));
      batch_.OutputLast(1);
    }
    const Tensor states = model_->Decode(batch_.Finish());
    if (!logits_.defined()) return;
    const int64_t chunk = std::min(rows, logits_.dim[0]);
    model_->Logits(states.Rows(0, chunk), logits_.Rows(0, chunk));
  }

  // Prefills several prompts with `tokens` tokens in total.
  void Prompts(int64_t tokens) {
    batch_.Clear();
    for (int64_t left = tokens; left > 0; left -= sequence_tokens_) {
      const int64_t own = std::min(left, sequence_tokens_);
      batch_.AddSequence(First(tokens_, own), First(slots_, own));
    }
    model_->Decode(batch_.Finish());
  }

  // Encodes several inputs with `tokens` tokens in total and projects them to cross-attention keys
  // and values.
  void Encode(int64_t tokens) {
    std::vector<int32_t> offsets = {0};
    while (offsets.back() < tokens) {
      offsets.push_back(
          static_cast<int32_t>(std::min<int64_t>(offsets.back() + sequence_tokens_, tokens)));
    }
    model_->BeginEncode({.tokens = First(tokens_, tokens), .offsets = offsets});
    constexpr int64_t kAll = int64_t{1} << 40;
    while (!model_->EncodeSlice(kAll)) {
    }
    if (model_->config().has_decoder()) {
      model_->ProjectCross(model_->EncodedStates(), 0, First(slots_, tokens), {});
    }
  }

 private:
  static std::span<const int32_t> First(const std::vector<int32_t>& values, int64_t count) {
    return {values.data(), static_cast<size_t>(count)};
  }
  void BeginGroup(int64_t owner) {
    if (!model_->config().has_encoder()) return;
    batch_.BeginGroup(static_cast<uint64_t>(owner), First(slots_, 1));
  }

  Model* model_;
  const int64_t sequence_tokens_;
  Tensor logits_;
  BatchBuilder batch_;
  std::vector<int32_t> tokens_, slots_;
};

// Runs the most frequent shapes first, because the time budget may run out.
absl::Status Measure(Model* model, WarmUpShapes shapes, int64_t budget_us) {
  constexpr int64_t kLeastTokens = 128;
  const Stream& stream = model->stream();
  const ModelConfig& config = model->config();
  const ModelLimits& limits = model->limits();
  Buffer memory;
  Tensor logits;
  if (config.has_decoder() && config.head == Head::kLanguageModel) {
    const int64_t rows =
        std::min(LogitsChunkRows(config.vocab, limits, stream), limits.max_step_sequences);
    const int64_t stride = LogitsStride(config.vocab);
    QT_ASSIGN_OR_RETURN(memory, stream.Allocate(rows * stride * 4));
    logits = Tensor::F32(memory.as<float>(), {rows, stride}).Columns(0, config.vocab);
  }
  WarmUpRun run(model, logits);
  const int64_t encode = limits.max_encode_tokens;
  return AutotuneGemms(stream.device(), budget_us, [&] {
    if (config.has_decoder()) {
      const std::vector<int64_t> counts = Chosen(shapes, Counts(1, limits.max_step_sequences));
      for (auto rows = counts.rbegin(); rows != counts.rend(); ++rows) run.Step(*rows);
    }
    for (const int64_t tokens : Chosen(shapes, Counts(std::min(kLeastTokens, encode), encode))) {
      if (config.has_encoder()) {
        run.Encode(tokens);
      } else if (tokens <= limits.max_step_tokens &&
                 tokens <= SequenceTokens(config) * limits.max_step_sequences) {
        run.Prompts(tokens);
      }
    }
  });
}

}  // namespace

absl::Status WarmUp(Model* model, WarmUpShapes shapes,
                    absl::FunctionRef<void(absl::string_view)> warn) {
  if (model->stream().backend() == Backend::kCpu) return absl::OkStatus();
  Device& device = model->stream().device();
  const auto tell = [&](const absl::Status& status) {
    if (!status.ok()) warn(status.message());
  };
  const std::string directory = CacheDirectory();
  tell(LoadGemmAlgorithmChoices(directory, DeviceKind(device), &GemmAlgorithmChoicesOf(device)));
  // Without a cache directory no GEMM variants are measured: choices could not be stored, and they
  // would differ from process to process.
  constexpr int64_t kBudgetUs = 2'000'000;
  const absl::Status measured = Measure(model, shapes, directory.empty() ? 0 : kBudgetUs);
  if (!measured.ok() && !absl::IsResourceExhausted(measured)) return measured;
  tell(SaveGemmAlgorithmChoices(directory, DeviceKind(device), GemmAlgorithmChoicesOf(device)));
  return absl::OkStatus();
}

}  // namespace quintet
