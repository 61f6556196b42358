#include "models/verify.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "models/convert/convert.h"
#include "models/model.h"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/scratch_directory.h"

namespace quintet {
namespace {

void MustConvert(const std::string& source, const std::string& target, ConvertForm form,
                 std::optional<DType> dtype) {
  ConvertOptions options;
  options.source = source;
  options.target = target;
  options.form = form;
  options.dtype = dtype;
  const absl::StatusOr<ConvertResult> result = Convert(options);
  INFO(source << ": " << result.status());
  REQUIRE(result.ok());
}

std::vector<StageError> Compare(const std::string& source, const std::string& result,
                                WeightType type = WeightType::kF32) {
  ThreadPool pool(1);
  VerifyOptions options;
  options.source = source;
  options.result = result;
  options.result_weights = type;
  const absl::StatusOr<std::vector<StageError>> errors = CompareModels(options, &pool);
  INFO(source << ": " << errors.status());
  REQUIRE(errors.ok());
  return *errors;
}

double Worst(const std::vector<StageError>& errors) {
  double worst = 0;
  for (const StageError& stage : errors) worst = std::max(worst, stage.error);
  return worst;
}

TEST_CASE("Verify compares every layer and the logits") {
  const std::vector<StageError> errors =
      Compare(GoldenDirectory("t5-v1_1"), GoldenDirectory("t5-v1_1"));
  std::vector<std::string> names;
  for (const StageError& stage : errors) names.push_back(stage.stage);
  CHECK(names == std::vector<std::string>{"encoder layer 0", "encoder layer 1", "encoder",
                                          "decoder layer 0", "decoder layer 1", "decoder",
                                          "logits"});
  CHECK(Compare(GoldenDirectory("gpt2"), GoldenDirectory("gpt2")).back().stage == "logits");
  CHECK(Compare(GoldenDirectory("t5-encoder"), GoldenDirectory("t5-encoder")).back().stage ==
        "encoder");
  CHECK(Compare(GoldenDirectory("fat5-seqcls"), GoldenDirectory("fat5-seqcls")).back().stage ==
        "logits");
}

TEST_CASE("Models packed in f32 give bit-identical values") {
  for (const char* name :
       {"t5-v1_0", "umt5", "gpt2-variant", "fat5-fire-32", "fat5-xpos", "fat5-alibi-asym",
        "t5-seqcls", "t5-qa", "fat5-tokcls", "longt5-local", "longt5-tglobal"}) {
    ScratchDirectory scratch;
    MustConvert(GoldenDirectory(name), scratch / "out", ConvertForm::kPacked, DType::kF32);
    INFO(name);
    CHECK(Worst(Compare(GoldenDirectory(name), scratch / "out")) == 0);
  }
}

TEST_CASE("T5 run as FAT5, and FAT5 run as T5, give the same values") {
  for (const char* name : {"t5-v1_0", "t5-v1_1", "mt5", "t5-encoder", "t5-tokcls"}) {
    ScratchDirectory scratch;
    MustConvert(GoldenDirectory(name), scratch / "fat5", ConvertForm::kFat5, std::nullopt);
    MustConvert(scratch / "fat5", scratch / "t5", ConvertForm::kT5, std::nullopt);
    INFO(name);
    CHECK(Worst(Compare(GoldenDirectory(name), scratch / "fat5")) <= 1e-6);
    CHECK(Worst(Compare(GoldenDirectory(name), scratch / "t5")) == 0);
  }
  for (const char* name : {"fat5-t5", "fat5-scale-null", "fat5-tokcls"}) {
    ScratchDirectory scratch;
    MustConvert(GoldenDirectory(name), scratch / "t5", ConvertForm::kT5, std::nullopt);
    INFO(name);
    CHECK(Worst(Compare(GoldenDirectory(name), scratch / "t5")) <= 1e-6);
  }
}

TEST_CASE("Rounded weights stay within their tolerance") {
  for (const char* name :
       {"t5-v1_0", "t5-v1_1", "mt5", "gpt2", "fat5-t5", "t5-long", "longt5-tglobal-long"}) {
    for (DType type : {DType::kF16, DType::kBF16, DType::kI8, DType::kF8}) {
      ScratchDirectory scratch;
      MustConvert(GoldenDirectory(name), scratch / "out", ConvertForm::kPacked, type);
      const WeightType run = type == DType::kI8 ? WeightType::kI8 : WeightType::kF32;
      const double worst = Worst(Compare(GoldenDirectory(name), scratch / "out", run));
      INFO(name << " " << DTypeName(type) << ": " << worst);
      CHECK(worst <= VerifyTolerance(type));
      if (IsQuantized(type)) CHECK(worst > 1e-4);
    }
  }
}

TEST_CASE("Another model exceeds every tolerance or has another shape") {
  CHECK(Worst(Compare(GoldenDirectory("fat5-t5"), GoldenDirectory("fat5-nope"))) >
        VerifyTolerance(DType::kI8));
  ThreadPool pool(1);
  VerifyOptions options;
  options.source = GoldenDirectory("t5-v1_1");
  options.result = GoldenDirectory("gpt2");
  CHECK(CompareModels(options, &pool).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("Measure predicts the memory that Load allocates") {
  ThreadPool pool(2);
  for (const char* name :
       {"t5-v1_0", "umt5", "gpt2", "fat5-rope", "fat5-fire-32", "t5-seqcls", "longt5-tglobal"}) {
    for (WeightType type : {WeightType::kF32, WeightType::kI8}) {
      LoadOptions options;
      options.weights = type;
      options.limits.max_encode_tokens = 100;
      options.limits.cache_pages = 7;
      const ModelMemory measured = *Model::Measure(GoldenDirectory(name), options, &pool);
      const ModelMemory loaded = (*Model::Load(GoldenDirectory(name), options, &pool))->memory();
      INFO(name);
      CHECK(measured.weights == loaded.weights);
      CHECK(measured.cache == loaded.cache);
      CHECK(measured.workspace == loaded.workspace);
      CHECK(measured.parameters == loaded.parameters);
      CHECK(loaded.weights > 0);
      CHECK(loaded.workspace > 0);
    }
  }
}

}  // namespace
}  // namespace quintet
