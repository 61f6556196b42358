#include "models/loaded_adapters.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/weight.h"
#include "models/adapters/adapter.h"
#include "models/adapters/linear_modules.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

// The weights that adapters can change, by the name of the parameter (WeightSlot::name).
std::map<std::string, const LinearWeight*> WeightsByName(const ModelWeights& weights) {
  std::map<std::string, const LinearWeight*> named;
  const auto add = [&](const std::string& name, const LinearWeight& weight) {
    if (weight.defined()) named.emplace(name + ".weight", &weight);
  };
  for (const auto& [stack, name] :
       {std::pair(&weights.encoder, "encoder"), std::pair(&weights.decoder, "decoder")}) {
    for (size_t i = 0; i < stack->layers.size(); ++i) {
      const LayerWeights& w = stack->layers[i];
      const std::string layer = absl::StrCat(name, ".layers.", i, ".");
      add(layer + "qkv", w.qkv);
      add(layer + "attention_out", w.attention_out);
      add(layer + "cross_q", w.cross_q);
      add(layer + "cross_out", w.cross_out);
      add(layer + "ffn_in", w.ffn_in);
      add(layer + "ffn_out", w.ffn_out);
    }
  }
  add("decoder.cross_kv", weights.cross_kv);
  return named;
}

// How a parameter is divided into parts: ranges of part_rows rows, such that each linear module
// consists of whole parts. `first`: the parameter's first part, as an index of a row's LoraParts.
struct Parts {
  int64_t part_rows = 0, count = 0, columns = 0, first = 0;
  int64_t max_rank = 0;
};

std::map<std::string, Parts> DivideParameters(const ModelConfig& config) {
  std::map<std::string, Parts> parameters;
  for (const LinearModule& module : ListModules(config).linear) {
    if (module.head) continue;
    Parts& parts = parameters[module.parameter];
    parts.part_rows = std::gcd(parts.part_rows, std::gcd(module.row, module.rows));
    parts.count = std::max(parts.count, module.row + module.rows);  // rows, until the loop below
    parts.columns = module.columns;
  }
  int64_t first = 0;
  for (auto& [name, parts] : parameters) {
    parts.count /= parts.part_rows;
    parts.first = std::exchange(first, first + parts.count);
  }
  return parameters;
}

int64_t PaddedRank(int64_t rank, const Stream& stream) {
  if (stream.backend() == Backend::kCpu) return rank;
  return (rank + kLoraRankMultiple - 1) / kLoraRankMultiple * kLoraRankMultiple;
}

absl::Status Named(const AdapterSource& source, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("adapter ", source.name, ": ", source.path, ": ",
                                                  status.message()));
}

absl::StatusOr<Adapter> ReadForInference(const AdapterSource& source, const ModelConfig& config,
                                         bool follow_symlinks) {
  absl::StatusOr<Adapter> adapter = ReadAdapter(source.path, config, follow_symlinks);
  if (!adapter.ok()) return Named(source, adapter.status());
  std::string head;
  if (!adapter->saved.empty()) head = adapter->saved[0].tensor.module;
  for (const LoraFactors& factors : adapter->factors) {
    if (factors.module.head) head = factors.module.name;
  }
  if (head.empty()) return adapter;
  return Named(source, absl::UnimplementedError(absl::StrCat(
                           "changes the head ", head,
                           ", which all requests share; merge the adapter into a model of its own: "
                           "quintet convert --adapter")));
}

int64_t FactorBytes(const Adapter& adapter) {
  int64_t values = 0;
  for (const LoraFactors& f : adapter.factors) values += std::ssize(f.a) + std::ssize(f.b);
  return values * int64_t{sizeof(float)};
}

// Writes values to consecutive memory of the stream's backend, converted to `dtype`. With a null
// `to` it writes nothing and only counts the bytes.
class FactorWriter {
 public:
  FactorWriter(char* to, DType dtype, const Stream& stream)
      : to_(to), dtype_(dtype), stream_(stream) {}

  // Appends [rows, columns] values, value(row, column), padded with zeros to [padded_rows,
  // padded_columns]; returns their address.
  template <typename Value>
  const void* Append(int64_t rows, int64_t columns, int64_t padded_rows, int64_t padded_columns,
                     Value value) {
    constexpr int64_t kAlignment = 64;
    const int64_t bytes = padded_rows * padded_columns * DTypeBytes(dtype_);
    char* const begin = to_ == nullptr ? nullptr : to_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (begin == nullptr) return nullptr;
    std::vector<float> padded(static_cast<size_t>(padded_rows * padded_columns));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const float v = value(r, c);
        in_range_ = in_range_ && std::abs(v) <= largest_;  // false for NaN
        padded[r * padded_columns + c] = v;
      }
    }
    std::vector<char> converted(static_cast<size_t>(bytes));
    ConvertFromF32(padded.data(), static_cast<int64_t>(padded.size()), dtype_, converted.data());
    stream_.Write(converted.data(), Tensor::Dense(begin, DType::kI8, {bytes}));
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
  const Stream& stream_;
  int64_t used_ = 0;
};

// Appends one adapter's factors to `writer` and sets `row`, the adapter's row of LoraPart entries.
void AppendFactors(const Adapter& adapter, const std::map<std::string, Parts>& parameters,
                   const Stream& stream, FactorWriter* writer, LoraPart* row) {
  for (const LoraFactors& f : adapter.factors) {
    const Parts& parts = parameters.at(f.module.parameter);
    const int64_t rank = PaddedRank(f.rank, stream), columns = parts.columns;
    const void* const a = writer->Append(
        f.rank, columns, rank, columns, [&](int64_t i, int64_t c) { return f.a[i * columns + c]; });
    for (int64_t begin = 0; begin < f.module.rows; begin += parts.part_rows) {
      const auto b = [&](int64_t c, int64_t i) { return f.scale * f.b[(begin + c) * f.rank + i]; };
      const int64_t n = parts.part_rows;
      LoraPart& part = row[parts.first + (f.module.row + begin) / n];
      part = {.a = a, .rank = rank};
      part.b =
          stream.backend() == Backend::kCpu
              ? writer->Append(f.rank, n, rank, n, [&](int64_t i, int64_t c) { return b(c, i); })
              : writer->Append(n, f.rank, n, rank, b);
    }
  }
}

}  // namespace

absl::Status CheckAdapterNames(std::span<const AdapterSource> sources) {
  if (sources.size() > kMaxAdapters) {
    return absl::InvalidArgumentError(absl::StrCat(
        "adapters: ", sources.size(), " are given, a model has at most ", kMaxAdapters));
  }
  std::set<std::string> names;
  for (const AdapterSource& source : sources) {
    const std::string& name = source.name;
    const bool printable = std::none_of(name.begin(), name.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    });
    if (name.empty() || name.size() > kMaxAdapterNameBytes || !printable || !IsUtf8(name)) {
      return absl::InvalidArgumentError(absl::StrCat("adapters: the name of ", source.path,
                                                     " is not 1 to ", kMaxAdapterNameBytes,
                                                     " bytes of UTF-8 without control characters"));
    }
    if (name.find(':') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("adapters: the name ", name,
                       " contains ':', which separates model and adapter in MODEL:ADAPTER"));
    }
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("adapters: the name ", name, " is given twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> FindAdapter(std::span<const AdapterSource> sources,
                                    const std::string& name) {
  constexpr size_t kListed = 20;
  std::string names;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].name == name) return static_cast<int32_t>(i);
    if (i < kListed) absl::StrAppend(&names, i == 0 ? "" : ", ", sources[i].name);
  }
  if (sources.size() > kListed) absl::StrAppend(&names, ", ...");
  return absl::NotFoundError(absl::StrCat("adapter: the model has no adapter ", Printable(name),
                                          "; it has: ", names.empty() ? "none" : names));
}

absl::StatusOr<LoadedAdapters> LoadedAdapters::Load(std::span<const AdapterSource> sources,
                                                    const ModelConfig& config,
                                                    const ModelWeights& weights, DType dtype,
                                                    bool follow_symlinks, bool describe,
                                                    const Stream& stream) {
  LoadedAdapters loaded;
  if (sources.empty()) return loaded;
  QT_RETURN_IF_ERROR(CheckAdapterNames(sources));
  loaded.size_ = static_cast<int64_t>(sources.size());
  std::map<std::string, Parts> parameters = DivideParameters(config);
  int64_t stride = 0;
  for (const auto& [name, parts] : parameters) stride += parts.count;
  std::vector<LoraPart> table(static_cast<size_t>(loaded.size_ * stride));
  for (int64_t t = 0; t < loaded.size_; ++t) {
    const AdapterSource& source = sources[static_cast<size_t>(t)];
    QT_ASSIGN_OR_RETURN(const Adapter adapter, ReadForInference(source, config, follow_symlinks));
    for (const LoraFactors& f : adapter.factors) {
      int64_t& max_rank = parameters.at(f.module.parameter).max_rank;
      max_rank = std::max(max_rank, PaddedRank(f.rank, stream));
    }
    loaded.reading_bytes_ = std::max(loaded.reading_bytes_, FactorBytes(adapter));
    FactorWriter sizes(nullptr, dtype, stream);
    LoraPart* const row = table.data() + t * stride;
    AppendFactors(adapter, parameters, stream, &sizes, row);
    loaded.bytes_ += sizes.used();
    if (describe) continue;
    absl::StatusOr<Buffer> factors = stream.Allocate(sizes.used());
    if (!factors.ok()) return Named(source, factors.status());
    FactorWriter writer(factors->as<char>(), dtype, stream);
    AppendFactors(adapter, parameters, stream, &writer, row);
    if (!writer.in_range()) {
      return Named(source,
                   absl::InvalidArgumentError(absl::StrCat(
                       "a factor, or a factor B times the scale, is beyond the range of ",
                       DTypeName(dtype), dtype == DType::kF16 ? "; use --dtype bf16" : "")));
    }
    loaded.factors_.push_back(*std::move(factors));
  }
  std::vector<uint64_t> counters;
  for (uint64_t i = 0; i < parameters.size(); ++i) counters.push_back(i << 48 | 1 << 16);
  QT_RETURN_IF_ERROR(loaded.StoreTable(table, counters, describe, stream));
  const std::map<std::string, const LinearWeight*> named = WeightsByName(weights);
  for (const auto& [name, parts] : parameters) {
    if (parts.max_rank == 0) continue;
    LoraWeight lora = {.stride = stride,
                       .parts = parts.count,
                       .part_columns = parts.part_rows,
                       .k = parts.columns,
                       .max_rank = parts.max_rank,
                       .dtype = dtype};
    if (!describe) {
      lora.table = loaded.table_.as<LoraPart>() + parts.first;
      lora.counter = reinterpret_cast<uint64_t*>(loaded.table_.as<LoraPart>() + table.size()) +
                     loaded.weights_.size();
    }
    loaded.weights_.emplace(named.at(name), lora);
  }
  return loaded;
}

absl::Status LoadedAdapters::StoreTable(const std::vector<LoraPart>& table,
                                        const std::vector<uint64_t>& counters, bool describe,
                                        const Stream& stream) {
  const auto table_bytes = static_cast<int64_t>(table.size() * sizeof(LoraPart));
  const auto counter_bytes = static_cast<int64_t>(counters.size() * sizeof(uint64_t));
  bytes_ += table_bytes + counter_bytes;
  if (describe) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(table_, stream.Allocate(table_bytes + counter_bytes));
  char* const base = table_.as<char>();
  stream.Write(table.data(), Tensor::Dense(base, DType::kI8, {table_bytes}));
  stream.Write(counters.data(), Tensor::Dense(base + table_bytes, DType::kI8, {counter_bytes}));
  return stream.Synchronize();
}

const LoraWeight* LoadedAdapters::Find(const WeightView* weight) const {
  const auto found = weights_.find(weight);
  return found == weights_.end() ? nullptr : &found->second;
}

}  // namespace quintet
