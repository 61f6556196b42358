#include <span>

#include "kernels/attention/mask.h"

#include "tests/catch.h"
#include "tests/kernels/attention/attention_problem.h"

namespace quintet::attention_test {
namespace {

// The part of a column mask (FlashMask) for one key: the mask hides the key from the queries at
// positions [lower_begin, lower_end) and [upper_begin, upper_end).
struct Column {
  int64_t lower_begin, lower_end, upper_begin, upper_end;
};

// A family of masks, defined in two ways that must agree: `column` gives the mask of key j as
// ranges of queries, the form that kernels read; `hidden` says whether query i may not see key j,
// the form that the reference uses.
struct Family {
  const char* name;
  bool causal;
  bool lower_end, upper;                               // whether the mask has these vectors
  std::function<Column(int64_t j, int64_t n)> column;  // key j of n
  std::function<bool(int64_t i, int64_t j, int64_t n)> hidden;  // excluding causality
  bool lower = true;                                            // whether it has lower_begin
};

constexpr int64_t kDocument = 75, kWindow = 50, kGlobal = 9, kPrefix = 20;
int64_t DocumentBegin(int64_t j) { return j / kDocument * kDocument; }
int64_t DocumentEnd(int64_t j, int64_t n) { return std::min(DocumentBegin(j) + kDocument, n); }
// The tokens form groups of 200: a question of kPrefix tokens, followed by answers of 30 tokens.
int64_t Group(int64_t i) { return i / 200; }
int64_t Answer(int64_t i) { return i % 200 < kPrefix ? -1 : (i % 200 - kPrefix) / 30; }
int64_t Evicted(int64_t j) { return j + 1 + j * 7919 % 301; }

std::vector<Family> Families() {
  return {
      {"full", false, false, false,
       [](int64_t, int64_t n) {
         return Column{n, n, 0, 0};
       },
       [](int64_t, int64_t, int64_t) { return false; }},
      {"causal", true, false, false,
       [](int64_t, int64_t n) {
         return Column{n, n, 0, 0};
       },
       [](int64_t, int64_t, int64_t) { return false; }, false},
      {"causal sliding window", true, false, false,
       [](int64_t j, int64_t n) {
         return Column{std::min(j + kWindow, n), n, 0, 0};
       },
       [](int64_t i, int64_t j, int64_t) { return i - j >= kWindow; }},
      {"sliding window", false, false, true,
       [](int64_t j, int64_t n) {
         return Column{std::min(j + kWindow + 1, n), n, 0, std::max<int64_t>(j - 30, 0)};
       },
       [](int64_t i, int64_t j, int64_t) { return i - j > kWindow || j - i > 30; }},
      {"causal documents", true, false, false,
       [](int64_t j, int64_t n) {
         return Column{DocumentEnd(j, n), n, 0, 0};
       },
       [](int64_t i, int64_t j, int64_t) { return DocumentBegin(i) != DocumentBegin(j); }},
      {"documents", false, false, true,
       [](int64_t j, int64_t n) {
         return Column{DocumentEnd(j, n), n, 0, DocumentBegin(j)};
       },
       [](int64_t i, int64_t j, int64_t) { return DocumentBegin(i) != DocumentBegin(j); }},
      {"shared question", true, false, false,
       [](int64_t j, int64_t n) {
         const int64_t group = Group(j) * 200;
         const int64_t end = Answer(j) < 0 ? 200 : kPrefix + (Answer(j) + 1) * 30;
         return Column{std::min(group + end, n), n, 0, 0};
       },
       [](int64_t i, int64_t j, int64_t) {
         return Group(i) != Group(j) || (Answer(j) >= 0 && Answer(i) != Answer(j));
       }},
      {"global and sliding window", false, true, true,
       [](int64_t j, int64_t n) {
         if (j < kGlobal) return Column{n, n, 0, 0};
         return Column{std::min(j + kWindow + 1, n), n, kGlobal, std::max(kGlobal, j - kWindow)};
       },
       [](int64_t i, int64_t j, int64_t) {
         return i >= kGlobal && j >= kGlobal && std::abs(i - j) > kWindow;
       }},
      {"causal blocks, the last sees all", true, true, false,
       [](int64_t j, int64_t n) {
         const int64_t last = DocumentBegin(n - 1);
         if (j >= last) return Column{n, n, 0, 0};
         return Column{DocumentEnd(j, n), last, 0, 0};
       },
       [](int64_t i, int64_t j, int64_t n) {
         return DocumentBegin(i) != DocumentBegin(j) && i < DocumentBegin(n - 1);
       }},
      {"documents with prefixes", false, false, true,
       [](int64_t j, int64_t n) {
         const int64_t begin = DocumentBegin(j);
         return Column{DocumentEnd(j, n), n, 0, j < begin + kPrefix ? begin : j};
       },
       [](int64_t i, int64_t j, int64_t) {
         return DocumentBegin(i) != DocumentBegin(j) || (j > i && j - DocumentBegin(j) >= kPrefix);
       }},
      {"prefix", false, false, true,
       [](int64_t j, int64_t n) {
         return Column{n, n, 0, j < kPrefix ? 0 : j};
       },
       [](int64_t i, int64_t j, int64_t) { return j > i && j >= kPrefix; }, false},
      // In this mask the queries before position 70 see no key at all.
      {"dropped keys", true, true, false,
       [](int64_t j, int64_t n) {
         return j < 70 ? Column{j, 70, 0, 0} : Column{n, n, 0, 0};
       },
       [](int64_t i, int64_t j, int64_t) { return j < 70 && i >= j && i < 70; }},
      {"random eviction", true, false, false,
       [](int64_t j, int64_t n) {
         return Column{std::min(Evicted(j), n), n, 0, 0};
       },
       [](int64_t i, int64_t j, int64_t) { return i >= Evicted(j); }},
  };
}

// The mask of one Family for all sequences of a Problem, as arguments of an Attention call: for
// each key the ranges of queries that do not see the key, and the summaries of the mask's tiles.
struct Columns {
  Columns(const Family& family, const Problem& p) {
    for (int32_t n : p.shape.kv_lens) {
      for (int64_t j = 0; j < n; ++j) {
        const Column c = family.column(j, n);
        lower_begin.push_back(static_cast<int32_t>(c.lower_begin));
        if (family.lower_end) lower_end.push_back(static_cast<int32_t>(c.lower_end));
        if (family.lower_end && family.upper) {
          upper_begin.push_back(static_cast<int32_t>(c.upper_begin));
        }
        if (family.upper) upper_end.push_back(static_cast<int32_t>(c.upper_end));
      }
    }
    if (!family.lower) lower_begin.clear();
    const ColumnMask mask{lower_begin, lower_end, upper_begin, upper_end, {}};
    tiles.resize(static_cast<size_t>(MaskTiles(p.kv_offsets)));
    SummariseMask(mask.columns(), p.kv_offsets, std::span(tiles));
  }

  ColumnMask On(TestBackend& backend, const std::vector<MaskTile>& summaries) const {
    return {backend.Plan(lower_begin), backend.Plan(lower_end), backend.Plan(upper_begin),
            backend.Plan(upper_end), backend.Plan(summaries)};
  }
  // Returns tile summaries that describe every tile as partly visible. The kernel can then neither
  // skip a tile nor treat it as fully visible: it evaluates the mask for every pair of query and
  // key.
  std::vector<MaskTile> Dense() const {
    constexpr MaskRange kAnything = {INT_MIN, INT_MAX, INT_MIN, INT_MAX};
    return std::vector<MaskTile>(tiles.size(), MaskTile{kAnything, kAnything});
  }

  std::vector<int32_t> lower_begin, lower_end, upper_begin, upper_end;
  std::vector<MaskTile> tiles;
};

void CheckFamily(const Family& family, Shape shape, uint32_t seed) {
  INFO(family.name << " head_dim " << shape.head_dim);
  shape.causal = family.causal;
  ForEachBackend([&](TestBackend& backend) {
    for (DType dtype : backend.float_types()) {
      if (Brief() && (dtype == DType::kBF16) == (seed / 2 % 2 == 0)) continue;
      if (Brief() && dtype == DType::kF32 && shape.head_dim > 64) continue;
      Problem problem(shape, seed, dtype);
      problem.hidden = [&](size_t s, int64_t i, int64_t j) {
        return family.hidden(i, j, problem.shape.kv_lens[s]);
      };
      const Columns columns(family, problem);
      const Inputs inputs(problem, nullptr, backend);
      AttentionArgs args = inputs.Args(false);
      const ColumnMask mask = columns.On(backend, columns.tiles);
      const ColumnMask dense = columns.On(backend, columns.Dense());
      args.mask = &mask;
      const std::vector<float> out = Run(args, backend);
      const std::vector<double> expected = Reference(problem);
      if (dtype == DType::kF32) {
        CHECK(WorstError(out, expected) < 4e-6);
      } else {
        CHECK(RelativeError(out, expected) < Tolerance(dtype));
      }
      size_t not_zero = 0;  // nonzero outputs of rows that see no key
      for (size_t i = 0; i < out.size(); ++i) not_zero += expected[i] == 0 && out[i] != 0;
      CHECK(not_zero == 0);
      args.mask = &dense;
      CHECK(SameBits(out, Run(args, backend)));
    }
  });
}

TEST_CASE("column masks equal the reference in double and the kernel with dense tile summaries",
          "[attention]") {
  uint32_t seed = 100;
  for (const Family& family : Families()) {
    for (int64_t dim : {64, 128}) {
      const bool table = seed % 2 == 0;
      const std::vector<int32_t> lens = Pick({dim == 64 ? 410 : 260, 63, 1, 130}, {230, 63, 1});
      CheckFamily(family,
                  {.heads = Pick<int64_t>(2, 1),
                   .head_dim = dim,
                   .q_lens = lens,
                   .kv_lens = lens,
                   .positions = {},
                   .bias = table ? BiasKind::kTable : BiasKind::kNone,
                   .scale = 0.2f,
                   .gap = 8},
                  ++seed);
    }
  }
}

TEST_CASE("column masks equal the reference with every bias, in rows without vector alignment",
          "[attention]") {
  uint32_t seed = 200;
  const std::vector<Family> families = Families();
  for (BiasKind kind : {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi, BiasKind::kFire}) {
    for (size_t family : {size_t{7}, size_t{11}}) {
      for (int64_t gap : Pick({3, 8}, {family == 7 ? 3 : 8})) {
        CheckFamily(families[family],
                    {.heads = Pick<int64_t>(2, 1),
                     .head_dim = 24,
                     .q_lens = Pick({5, 150, 40}, {5, 130}),
                     .kv_lens = Pick({150, 150, 90}, {150, 130}),
                     .positions = Pick({60, 0, 50}, {60, 0}),
                     .bias = kind,
                     .gap = gap},
                    ++seed);
      }
    }
  }
}

TEST_CASE("tiles of the paper's example mask are classified as in the paper", "[attention]") {
  const std::vector<int32_t> begin = {13, 5, 5, 5, 6, 6, 9, 9, 9, 12, 12, 12, 16, 16, 16, 16};
  const std::vector<int32_t> end = {15, 14, 14, 15, 12, 12, 11, 11, 16, 16, 16, 16, 16, 16, 16, 16};
  const MaskColumns columns{begin.data(), end.data(), nullptr, nullptr};
  const TileVisibility kAll = TileVisibility::kAll, kSome = TileVisibility::kSome,
                       kNone = TileVisibility::kNone;
  // expected[row][column] says whether the mask leaves all, some or none of the (query, key) pairs
  // of a tile of 4 queries and 4 keys visible. Only the tiles on and below the diagonal are listed.
  // Causality, which also hides pairs of the diagonal tiles, is not taken into account.
  const std::vector<std::vector<TileVisibility>> expected = {
      {kAll}, {kSome, kSome}, {kSome, kSome, kSome}, {kSome, kAll, kNone, kAll}};
  for (int row = 0; row < 4; ++row) {
    for (int column = 0; column <= row; ++column) {
      MaskTile tile = columns.At(column * 4);
      for (int j = 1; j < 4; ++j) tile.Add(columns.At(column * 4 + j));
      CHECK(tile.View(row * 4, row * 4 + 4) ==
            expected[static_cast<size_t>(row)][static_cast<size_t>(column)]);
    }
  }
}

}  // namespace
}  // namespace quintet::attention_test
