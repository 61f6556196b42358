#include "tests/fuzz/exercise_tokenizer.h"

#include <string>
#include <vector>

#include "kernels/base/check.h"

namespace quintet {
namespace {

void ExerciseText(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens) {
  const absl::StatusOr<std::vector<int32_t>> encoded = tokenizer.Encode(text, add_special_tokens);
  const absl::StatusOr<std::vector<TokenSpan>> spanned =
      tokenizer.EncodeWithSpans(text, add_special_tokens);
  QT_CHECK(encoded.status() == spanned.status());
  if (!encoded.ok()) return;  // the normalizer makes the text too long
  const std::vector<int32_t>& ids = *encoded;
  const std::vector<TokenSpan>& spans = *spanned;
  QT_CHECK_EQ(spans.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    QT_CHECK_EQ(spans[i].id, ids[i]);
    QT_CHECK_LE(spans[i].begin_byte, spans[i].end_byte);
    QT_CHECK_LE(spans[i].end_byte, text.size());
    QT_CHECK_GE(ids[i], 0);
    QT_CHECK_LT(ids[i], tokenizer.vocab_size());
    tokenizer.Piece(ids[i]);
  }
  tokenizer.Decode(ids, /*skip_special_tokens=*/false);
  tokenizer.Decode(ids, /*skip_special_tokens=*/true);
}

}  // namespace

void ExerciseTokenizer(const Tokenizer& tokenizer, std::string_view text) {
  for (const std::string_view one :
       {text, std::string_view("abc \u00E9\uFF21 \U0001F600</s>\xFF\x80 don't  12"),
        std::string_view("\0aaaaaaaaaaaaaaaa", 17), std::string_view()}) {
    ExerciseText(tokenizer, one, true);
    ExerciseText(tokenizer, one, false);
  }
  const std::vector<int32_t> strays = {-1, 0, static_cast<int32_t>(tokenizer.vocab_size()),
                                       INT32_MAX, INT32_MIN};
  tokenizer.Decode(strays, true);
  for (const int32_t id : strays) tokenizer.Piece(id);
}

}  // namespace quintet
