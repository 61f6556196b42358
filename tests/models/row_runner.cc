#include "tests/models/row_runner.h"

#include <algorithm>

#include "models/adapter_slots.h"

namespace quintet {

int64_t TotalTokens(const TokenRows& rows) {
  int64_t total = 0;
  for (const auto& row : rows) total += static_cast<int64_t>(row.size());
  return total;
}

int64_t PagesFor(const TokenRows& decoder_rows, const TokenRows& sources, int64_t page_size) {
  int64_t pages = 0;
  for (const TokenRows* rows : {&decoder_rows, &sources}) {
    for (const auto& row : *rows) {
      pages += (static_cast<int64_t>(row.size()) + page_size - 1) / page_size;
    }
  }
  return pages;
}

void RowRunner::set_adapters(const std::vector<AdapterHandle>& adapters) {
  for (const int32_t slot : adapters_) {
    if (slot >= 0) model_->adapter_slots()->Return(slot);
  }
  adapters_.clear();
  for (const AdapterHandle& adapter : adapters) {
    adapters_.push_back(adapter == nullptr ? -1 : model_->adapter_slots()->Take(adapter));
    QT_CHECK_EQ(adapters_.back() < 0, adapter == nullptr);
  }
}

void RowRunner::set_adapters(const std::vector<int32_t>& adapters) {
  std::vector<AdapterHandle> handles;
  for (const int32_t adapter : adapters) {
    handles.push_back(adapter < 0 ? nullptr : model_->adapters()[static_cast<size_t>(adapter)]);
  }
  set_adapters(handles);
}

std::vector<float> RowRunner::Encode(const TokenRows& rows, int64_t work) {
  std::vector<int32_t> tokens;
  source_offsets_ = {0};
  for (const auto& row : rows) {
    tokens.insert(tokens.end(), row.begin(), row.end());
    source_offsets_.push_back(static_cast<int32_t>(tokens.size()));
  }
  model_->BeginEncode({.tokens = tokens, .offsets = source_offsets_, .adapters = adapters_});
  while (!model_->EncodeSlice(work)) {
  }
  return ReadAll(model_->EncodedStates());
}

std::vector<float> RowRunner::ReadAll(const Tensor& t) {
  std::vector<float> values(static_cast<size_t>(t.elements()));
  model_->stream().Read(t, values.data());
  return values;
}

// Allocates an uninitialized f32 tensor [rows, columns] in memory of the model's stream.
Tensor RowRunner::Allocate(int64_t rows, int64_t columns, Buffer* memory) {
  absl::StatusOr<Buffer> buffer = model_->stream().Allocate(rows * columns * 4);
  QT_CHECK(buffer.ok());
  *memory = *std::move(buffer);
  return Tensor::F32(memory->as<float>(), {rows, columns});
}

std::vector<int32_t> RowRunner::TakeSlots(int64_t tokens) {
  const int64_t page_size = model_->cache().page_size;
  std::vector<int32_t> slots;
  for (int64_t t = 0; t < tokens; ++t) {
    if (t % page_size == 0) ++next_page_;
    const int64_t page = model_->cache().pages - next_page_;
    slots.push_back(static_cast<int32_t>(page * page_size + t % page_size));
  }
  return slots;
}

std::vector<std::vector<int32_t>> RowRunner::ProjectSources() {
  std::vector<std::vector<int32_t>> slots;
  for (size_t i = 0; i + 1 < source_offsets_.size(); ++i) {
    const int32_t begin = source_offsets_[i], end = source_offsets_[i + 1];
    slots.push_back(TakeSlots(end - begin));
    std::vector<int32_t> adapters;
    if (!adapters_.empty()) adapters.assign(slots.back().size(), adapters_[i]);
    model_->ProjectCross(model_->EncodedStates().Rows(begin, end), 0, slots.back(), adapters);
  }
  return slots;
}

std::vector<float> RowRunner::Decode(const TokenRows& rows, int64_t piece) {
  const int64_t d_model = model_->config().d_model;
  next_page_ = 0;
  std::vector<std::vector<int32_t>> sources, slots;
  if (model_->config().has_encoder()) sources = ProjectSources();
  std::vector<int64_t> row_begin;
  size_t longest = 0, longest_source = 0, total = 0;
  for (const auto& row : rows) {
    slots.push_back(TakeSlots(static_cast<int64_t>(row.size())));
    row_begin.push_back(static_cast<int64_t>(total));
    total += row.size();
    longest = std::max(longest, row.size());
  }
  for (const auto& source : sources) longest_source = std::max(longest_source, source.size());
  std::vector<float> states(total * static_cast<size_t>(d_model));

  for (size_t done = 0; done < longest; done += static_cast<size_t>(piece)) {
    std::vector<int32_t> tokens, offsets = {0}, kv_lens, slot_table, groups = {0}, source_table;
    std::vector<int32_t> source_lens, output_rows, adapters;
    std::vector<int64_t> target;  // row of `states` for each token
    for (size_t r = 0; r < rows.size(); ++r) {
      const size_t end = std::min(done + static_cast<size_t>(piece), rows[r].size());
      if (end <= done) continue;
      for (size_t t = done; t < end; ++t) {
        output_rows.push_back(static_cast<int32_t>(tokens.size()));
        tokens.push_back(rows[r][t]);
        target.push_back(row_begin[r] + static_cast<int64_t>(t));
      }
      offsets.push_back(static_cast<int32_t>(tokens.size()));
      kv_lens.push_back(static_cast<int32_t>(end));
      if (!adapters_.empty()) adapters.push_back(adapters_[r]);
      slot_table.insert(slot_table.end(), slots[r].begin(), slots[r].end());
      slot_table.resize(kv_lens.size() * longest, -1);
      if (sources.empty()) continue;
      groups.push_back(static_cast<int32_t>(kv_lens.size()));
      source_lens.push_back(static_cast<int32_t>(sources[r].size()));
      source_table.insert(source_table.end(), sources[r].begin(), sources[r].end());
      source_table.resize(source_lens.size() * longest_source, -1);
    }
    const Tensor out = model_->Decode({.tokens = tokens,
                                       .offsets = offsets,
                                       .kv_lens = kv_lens,
                                       .slots = slot_table.data(),
                                       .slots_stride = static_cast<int64_t>(longest),
                                       .group_offsets = groups,
                                       .source_slots = source_table.data(),
                                       .source_slots_stride = static_cast<int64_t>(longest_source),
                                       .source_lens = source_lens,
                                       .adapters = adapters,
                                       .output_rows = output_rows});
    const std::vector<float> values = ReadAll(out);
    for (size_t i = 0; i < target.size(); ++i) {
      const float* row = values.data() + static_cast<int64_t>(i) * d_model;
      std::copy(row, row + d_model, states.begin() + target[i] * d_model);
    }
  }
  return states;
}

std::vector<float> RowRunner::Logits(const std::vector<float>& states) {
  const int64_t d_model = model_->config().d_model, vocab = model_->config().vocab;
  const int64_t rows = static_cast<int64_t>(states.size()) / d_model;
  Buffer in, out;
  const Tensor x = Allocate(rows, d_model, &in), logits = Allocate(rows, vocab, &out);
  model_->stream().Write(states.data(), x);
  model_->Logits(x, logits);
  return ReadAll(logits);
}

std::vector<float> RowRunner::Classify(const std::vector<float>& states) {
  const int64_t d_model = model_->config().d_model, labels = model_->config().labels;
  const int64_t rows = static_cast<int64_t>(states.size()) / d_model;
  Buffer in, out;
  const Tensor x = Allocate(rows, d_model, &in), logits = Allocate(rows, labels, &out);
  model_->stream().Write(states.data(), x);
  model_->Classify(x, logits);
  return ReadAll(logits);
}

}  // namespace quintet
