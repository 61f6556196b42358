#include "kernels/sampling/candidate_logits.h"

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

TEST_CASE("CandidateLogits gathers from the logits or from the kept copies", "[candidate_logits]") {
  RandomData random(3);
  constexpr int64_t kRows = 9, kVocab = 501, kEntries = 4, kMost = 300;
  const std::vector<float> logits = random.Values(kRows * kVocab),
                           kept = random.Values(kRows * kVocab);
  const std::vector<int32_t> first_rows{0, 1, 5, 8}, rows{1, 4, 3, 1}, from_raw{0, 1, 0, 7};
  std::vector<int32_t> indices(kEntries * kMost);
  std::vector<float> expected(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const size_t entry = i / kMost;
    indices[i] = static_cast<int32_t>(random.Below(rows[entry] * kVocab + 1)) - 1;
    const auto at = static_cast<size_t>(first_rows[entry] * kVocab + indices[i]);
    if (indices[i] >= 0) expected[i] = (from_raw[entry] != 0 ? kept : logits)[at];
  }
  ForEachBackend([&](TestBackend& backend) {
    CandidateLogitsArgs args;
    args.logits = backend.Put(logits, {kRows, kVocab});
    args.raw_logits = backend.Put(kept, {kRows, kVocab});
    args.first_rows = backend.Plan(first_rows);
    args.from_raw = backend.Plan(from_raw);
    args.indices = backend.PutBytes(indices.data(), static_cast<int64_t>(indices.size()) * 4,
                                    DType::kI32, {kEntries, kMost});
    args.values = backend.Poisoned(DType::kF32, {kEntries, kMost});
    CandidateLogits(args, backend.stream());
    CHECK(backend.Floats(args.values) == expected);
  });
}

}  // namespace
}  // namespace quintet
