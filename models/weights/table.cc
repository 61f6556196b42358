#include "models/weights/table.h"

#include "kernels/linear/weight.h"
#include "models/weights/weights_families.h"

namespace quintet {

void WeightTableBuilder::Add(const std::string& name, WeightKind kind, std::vector<int64_t> shape,
                             const std::vector<Names>& sources) {
  WeightSlot slot;
  slot.name = name;
  slot.kind = kind;
  slot.shape = std::move(shape);
  const int64_t rows = slot.shape.empty() ? 1 : slot.shape[0];
  for (const Names& names : sources) {
    slot.sources.push_back({names, rows / static_cast<int64_t>(sources.size()), false});
  }
  slots_.push_back(std::move(slot));
}

void WeightTableBuilder::Vector(const std::string& name, std::vector<int64_t> shape,
                                const Names& names, Tensor* to) {
  Add(name, WeightKind::kVector, std::move(shape), {names});
  slots_.back().tensor = to;
}

void WeightTableBuilder::Table(const std::string& name, int64_t rows, int64_t columns,
                               const Names& names, Tensor* to) {
  Add(name, WeightKind::kTable, {rows, columns}, {names});
  slots_.back().tensor = to;
}

void WeightTableBuilder::Matrix(const std::string& name, int64_t rows, int64_t columns,
                                const Names& names, LinearWeight* to) {
  Stacked(name, rows, columns, {names}, false, to);
}

void WeightTableBuilder::Transposed(const std::string& name, int64_t rows, int64_t columns,
                                    const Names& names, LinearWeight* to) {
  Stacked(name, rows, columns, {names}, false, to);
  slots_.back().sources[0].transposed = true;
}

void WeightTableBuilder::Stacked(const std::string& name, int64_t rows, int64_t columns,
                                 const std::vector<Names>& sources, bool gated, LinearWeight* to) {
  Add(name, WeightKind::kMatrix, {rows, columns}, sources);
  slots_.back().gated = gated;
  slots_.back().matrix = to;
}

std::vector<WeightSlot> BuildWeightTable(const ModelConfig& config,
                                         WeightDestinations* destinations) {
  destinations->weights.encoder.layers.resize(static_cast<size_t>(config.encoder_layers));
  destinations->weights.decoder.layers.resize(static_cast<size_t>(config.decoder_layers));
  destinations->encoder_position.resize(static_cast<size_t>(config.encoder_layers));
  destinations->decoder_position.resize(static_cast<size_t>(config.decoder_layers));
  WeightTableBuilder table;
  if (config.family == Family::kGpt2) {
    AddGpt2Weights(config, destinations, &table);
  } else {
    AddT5Weights(config, destinations, &table);
  }
  std::vector<WeightSlot> slots = table.Take();
  if (config.converted()) {
    // In a converted checkpoint each parameter is one tensor, under the parameter's own name. A
    // head equal to the embedding is not stored.
    for (WeightSlot& slot : slots) {
      slot.sources = {{{slot.name}, slot.shape.empty() ? 1 : slot.shape[0], false}};
      if (slot.name == "head.weight") slot.sources[0].names.emplace_back("embedding.weight");
    }
  }
  return slots;
}

}  // namespace quintet
