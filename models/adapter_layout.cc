#include "models/adapter_layout.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "models/adapters/adapter.h"
#include "models/adapters/linear_modules.h"

namespace quintet {
namespace {

absl::Status Named(const AdapterSource& source, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("adapter ", source.name, ": ", source.path, ": ",
                                                  status.message()));
}

absl::Status CheckNoHead(const Adapter& adapter) {
  std::string head;
  if (!adapter.saved.empty()) head = adapter.saved[0].tensor.module;
  for (const LoraFactors& factors : adapter.factors) {
    if (factors.module.head) head = factors.module.name;
  }
  if (head.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("changes the head ", head,
                   ", which all requests share; merge the adapter into a model of its own: "
                   "quintet convert --adapter"));
}

// Writes matrices to consecutive memory, converted to `dtype`. With a null `to` it writes nothing
// and only counts the bytes.
class FactorWriter {
 public:
  FactorWriter(char* to, DType dtype) : to_(to), dtype_(dtype) {}

  // Appends the matrix [rows, columns] with elements value(row, column), padded with zeros to
  // [padded_rows, padded_columns]. Returns its offset in bytes from the first matrix.
  template <typename Value>
  int64_t Append(int64_t rows, int64_t columns, int64_t padded_rows, int64_t padded_columns,
                 Value value) {
    constexpr int64_t kAlignment = 64;
    const int64_t begin = used_;
    const int64_t count = padded_rows * padded_columns;
    used_ += (count * DTypeBytes(dtype_) + kAlignment - 1) / kAlignment * kAlignment;
    if (to_ == nullptr) return begin;
    padded_.assign(static_cast<size_t>(count), 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const float v = value(r, c);
        in_range_ = in_range_ && std::abs(v) <= largest_;  // false for NaN
        padded_[r * padded_columns + c] = v;
      }
    }
    ConvertFromF32(padded_.data(), count, dtype_, to_ + begin);
    return begin;
  }
  int64_t used() const { return used_; }
  // Whether all values that were written are finite in the target's dtype.
  bool in_range() const { return in_range_; }

 private:
  char* const to_;
  const DType dtype_;
  const float largest_ = dtype_ == DType::kF16 ? 65504.0f : std::numeric_limits<float>::max();
  bool in_range_ = true;
  int64_t used_ = 0;
  std::vector<float> padded_;
};

// Appends the factors of an adapter. If the writer only counts bytes, `adapter` may come from
// DescribeAdapter and have no values. All parts of one module share A.
std::vector<PackedAdapter::Part> AppendFactors(const Adapter& adapter, const AdapterLayout& layout,
                                               FactorWriter* writer) {
  std::vector<PackedAdapter::Part> parts;
  for (const LoraFactors& f : adapter.factors) {
    const AdapterLayout::Parameter& parameter = layout.parameters.at(f.module.parameter);
    const int64_t rank = layout.StoredRank(f.rank), columns = parameter.columns;
    const int64_t a = writer->Append(f.rank, columns, rank, columns,
                                     [&](int64_t i, int64_t c) { return f.a[i * columns + c]; });
    const int64_t n = parameter.part_rows;
    for (int64_t begin = 0; begin < f.module.rows; begin += n) {
      const auto b = [&](int64_t c, int64_t i) { return f.scale * f.b[(begin + c) * f.rank + i]; };
      PackedAdapter::Part part = {
          .index = parameter.first + (f.module.row + begin) / n, .a = a, .rank = rank};
      part.b =
          layout.backend == Backend::kCpu
              ? writer->Append(f.rank, n, rank, n, [&](int64_t i, int64_t c) { return b(c, i); })
              : writer->Append(n, f.rank, n, rank, b);
      parts.push_back(part);
    }
  }
  return parts;
}

AdapterSize SizeOf(const Adapter& adapter, const AdapterLayout& layout) {
  AdapterSize size;
  FactorWriter writer(nullptr, layout.dtype);
  AppendFactors(adapter, layout, &writer);
  size.bytes = writer.used();
  int64_t values = 0;
  for (const LoraFactors& f : adapter.factors) {
    values += f.rank * (f.module.rows + f.module.columns);
    int64_t& rank = size.ranks[f.module.parameter];
    rank = std::max(rank, layout.StoredRank(f.rank));
  }
  size.reading_bytes = values * int64_t{sizeof(float)};
  return size;
}

absl::Status Pack(const Adapter& adapter, const Stream& stream, PackedAdapter* packed) {
  QT_RETURN_IF_ERROR(CheckNoHead(adapter));
  const AdapterLayout& layout = *packed->layout;
  packed->size = SizeOf(adapter, layout);
  QT_ASSIGN_OR_RETURN(packed->factors, stream.AllocateHost(packed->size.bytes));
  FactorWriter writer(packed->factors.as<char>(), layout.dtype);
  packed->parts = AppendFactors(adapter, layout, &writer);
  if (writer.in_range()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a factor, or a factor B times the scale, is beyond the range of ", DTypeName(layout.dtype),
      layout.dtype == DType::kF16 ? "; use --dtype bf16" : ""));
}

uint64_t NextId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

AdapterLayout::AdapterLayout(const ModelConfig& config, DType stored, Backend target)
    : dtype(stored), backend(target) {
  for (const LinearModule& module : ListModules(config).linear) {
    if (module.head) continue;
    Parameter& parameter = parameters[module.parameter];
    parameter.part_rows = std::gcd(parameter.part_rows, std::gcd(module.row, module.rows));
    parameter.parts = std::max(parameter.parts, module.row + module.rows);  // rows, until below
    parameter.columns = module.columns;
  }
  for (auto& [name, parameter] : parameters) {
    parameter.parts /= parameter.part_rows;
    parameter.first = std::exchange(stride, stride + parameter.parts);
  }
}

int64_t AdapterLayout::StoredRank(int64_t rank) const {
  if (backend == Backend::kCpu) return rank;
  return (rank + kLoraRankMultiple - 1) / kLoraRankMultiple * kLoraRankMultiple;
}

void AdapterSize::TakeMax(const AdapterSize& other) {
  bytes = std::max(bytes, other.bytes);
  reading_bytes = std::max(reading_bytes, other.reading_bytes);
  for (const auto& [parameter, rank] : other.ranks) {
    ranks[parameter] = std::max(ranks[parameter], rank);
  }
}

PackedAdapter::PackedAdapter() : id(NextId()) {}

void PackedAdapter::FillRow(const char* base, LoraPart* row) const {
  std::fill_n(row, layout->stride, LoraPart{});
  for (const Part& part : parts) {
    row[part.index] = {.a = base + part.a, .b = base + part.b, .rank = part.rank};
  }
}

absl::StatusOr<AdapterSize> MeasureAdapter(const AdapterSource& source, const ModelConfig& config,
                                           const AdapterLayout& layout, bool follow_symlinks) {
  absl::StatusOr<Adapter> adapter = DescribeAdapter(source.path, config, follow_symlinks);
  absl::Status status = adapter.status();
  if (status.ok()) status = CheckNoHead(*adapter);
  if (!status.ok()) return Named(source, status);
  return SizeOf(*adapter, layout);
}

absl::StatusOr<AdapterHandle> PackAdapter(const AdapterSource& source, const ModelConfig& config,
                                          const std::shared_ptr<const AdapterLayout>& layout,
                                          bool follow_symlinks, const Stream& stream) {
  const auto pack = [&]() -> absl::StatusOr<AdapterHandle> {
    const auto packed = std::make_shared<PackedAdapter>();
    packed->layout = layout;
    packed->source = source;
    packed->stamp = StampAdapter(source.path);
    QT_ASSIGN_OR_RETURN(const Adapter adapter, ReadAdapter(source.path, config, follow_symlinks));
    QT_RETURN_IF_ERROR(Pack(adapter, stream, packed.get()));
    return packed;
  };
  absl::StatusOr<AdapterHandle> packed = CatchOutOfMemory(pack);
  if (!packed.ok()) return Named(source, packed.status());
  return packed;
}

}  // namespace quintet
