#include "models/adapter_pool.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/weight.h"
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

// Calls read(i) for each i in [0, count) on the threads of `pool` and returns the first error.
absl::Status ForEachSource(ThreadPool* pool, size_t count,
                           const std::function<absl::Status(size_t i)>& read) {
  std::vector<absl::Status> statuses(count);
  pool->ParallelFor(static_cast<int64_t>(count), [&](int64_t task, int) {
    const auto i = static_cast<size_t>(task);
    statuses[i] = CatchOutOfMemory([&] { return read(i); });
  });
  for (const absl::Status& status : statuses) {
    QT_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
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
  const auto found = std::find_if(sources.begin(), sources.end(),
                                  [&](const AdapterSource& source) { return source.name == name; });
  if (found != sources.end()) return static_cast<int32_t>(found - sources.begin());
  std::string names;
  for (const AdapterSource& source : sources.first(std::min(kListed, sources.size()))) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", source.name);
  }
  if (sources.size() > kListed) absl::StrAppend(&names, ", ...");
  return absl::NotFoundError(absl::StrCat("adapter: the model has no adapter ", Printable(name),
                                          "; it has: ", names.empty() ? "none" : names));
}

AdapterPool::AdapterPool(const Options& options, const ModelConfig& config, DType dtype,
                         const Stream& stream)
    : options_(options),
      config_(config),
      stream_(stream),
      layout_(options.replica_of != nullptr
                  ? options.replica_of->layout_
                  : std::make_shared<const AdapterLayout>(config, dtype, stream.backend())),
      slot_count_(options.slots > 0 ? options.slots : static_cast<int64_t>(options.sources.size())),
      uploads_(static_cast<size_t>(slot_count_)),
      slots_(slot_count_, layout_.get(),
             [this](int32_t slot, const AdapterHandle& adapter) { Fill(slot, adapter); }) {}

AdapterPool::~AdapterPool() {
  // Copies to the slots may still be in flight; they use memory that is about to be freed.
  if (table_.bytes() > 0) stream_.Synchronize().IgnoreError();
}

absl::StatusOr<std::unique_ptr<AdapterPool>> AdapterPool::Load(const Options& options,
                                                               const ModelConfig& config,
                                                               const ModelWeights& weights,
                                                               DType dtype, const Stream& stream) {
  QT_RETURN_IF_ERROR(CheckAdapterNames(options.sources));
  std::unique_ptr<AdapterPool> pool(new AdapterPool(options, config, dtype, stream));
  QT_RETURN_IF_ERROR(pool->Measure());
  if (!options.describe) {
    if (options.replica_of == nullptr) QT_RETURN_IF_ERROR(pool->ReadSources());
    QT_RETURN_IF_ERROR(pool->AllocateSlots());
  }
  pool->DescribeWeights(weights);
  return pool;
}

absl::Status AdapterPool::Measure() {
  const std::vector<AdapterSource>& sources = options_.sources;
  std::vector<AdapterSize> sizes(sources.size());
  QT_RETURN_IF_ERROR(ForEachSource(&stream_.pool(), sources.size(), [&](size_t i) -> absl::Status {
    QT_ASSIGN_OR_RETURN(sizes[i],
                        MeasureAdapter(sources[i], config_, *layout_, options_.follow_symlinks));
    return absl::OkStatus();
  }));
  int64_t all = 0;
  for (const AdapterSize& size : sizes) {
    room_.TakeMax(size);
    all += size.bytes;
  }
  const bool on_gpu = stream_.backend() != Backend::kCpu;
  const int64_t row_bytes = layout_->stride * int64_t{sizeof(LoraPart)};
  const auto counters = static_cast<int64_t>(layout_->parameters.size() * sizeof(uint64_t));
  bytes_ = slot_count_ * (row_bytes + (on_gpu ? room_.bytes : 0)) + counters + (on_gpu ? 0 : all);
  host_bytes_ = on_gpu ? all + slot_count_ * row_bytes : 0;
  return absl::OkStatus();
}

absl::Status AdapterPool::ReadSources() {
  loaded_.resize(options_.sources.size());
  return ForEachSource(&stream_.pool(), loaded_.size(), [&](size_t i) -> absl::Status {
    QT_ASSIGN_OR_RETURN(loaded_[i], Read(options_.sources[i]));
    return absl::OkStatus();
  });
}

absl::StatusOr<AdapterHandle> AdapterPool::Read(const AdapterSource& source) const {
  QT_ASSIGN_OR_RETURN(AdapterHandle adapter,
                      PackAdapter(source, config_, layout_, options_.follow_symlinks, stream_));
  AdapterSize most = room_;
  most.TakeMax(adapter->size);
  if (most.bytes == room_.bytes && most.ranks == room_.ranks) return adapter;
  return absl::FailedPreconditionError(
      absl::StrCat("adapter ", source.name, ": ", source.path,
                   ": it is larger than the adapters with which the model was loaded, or changes "
                   "other modules"));
}

absl::Status AdapterPool::AllocateSlots() {
  const int64_t stride = layout_->stride;
  QT_ASSIGN_OR_RETURN(table_,
                      stream_.AllocatePinned(slot_count_ * stride * int64_t{sizeof(LoraPart)}));
  if (stream_.backend() != Backend::kCpu) {
    QT_ASSIGN_OR_RETURN(factors_, stream_.Allocate(slot_count_ * room_.bytes));
  }
  std::vector<uint64_t> counters;
  for (uint64_t i = 0; i < layout_->parameters.size(); ++i) counters.push_back(i << 48 | 1 << 16);
  const auto bytes = static_cast<int64_t>(counters.size() * sizeof(uint64_t));
  QT_ASSIGN_OR_RETURN(counters_, stream_.Allocate(bytes));
  stream_.Write(counters.data(), Tensor::Dense(counters_.data(), DType::kI8, {bytes}));
  return stream_.Synchronize();
}

void AdapterPool::DescribeWeights(const ModelWeights& weights) {
  const std::map<std::string, const LinearWeight*> named = WeightsByName(weights);
  for (const auto& [name, rank] : room_.ranks) {
    const AdapterLayout::Parameter& parameter = layout_->parameters.at(name);
    LoraWeight lora = {.stride = layout_->stride,
                       .parts = parameter.parts,
                       .part_columns = parameter.part_rows,
                       .k = parameter.columns,
                       .max_rank = rank,
                       .dtype = layout_->dtype};
    if (table_.bytes() > 0) {
      lora.table = stream_.DevicePtr(table_.as<LoraPart>()) + parameter.first;
      lora.counter = counters_.as<uint64_t>() + weights_.size();
    }
    weights_.emplace(named.at(name), lora);
  }
}

void AdapterPool::Fill(int32_t slot, const AdapterHandle& adapter) {
  // Earlier copies to this slot read its row of table_ and the factors of its previous adapter.
  // Neither may change or be freed before these copies are complete.
  stream_.WaitForH2D(uploads_[static_cast<size_t>(slot)]);
  const char* base = adapter->factors.as<char>();
  if (stream_.backend() != Backend::kCpu) {
    char* const to = factors_.as<char>() + slot * room_.bytes;
    stream_.Write(base, Tensor::Dense(to, DType::kI8, {adapter->size.bytes}));
    base = to;
  }
  adapter->FillRow(base, Row(slot));
  uploads_[static_cast<size_t>(slot)] =
      stream_.CopyH2D(Row(slot), layout_->stride * int64_t{sizeof(LoraPart)});
}

const LoraWeight* AdapterPool::Find(const WeightView* weight) const {
  const auto found = weights_.find(weight);
  return found == weights_.end() ? nullptr : &found->second;
}

}  // namespace quintet
