// The linear modules of a model, under Hugging Face's or FAT5's names, and where the rows of each
// are in Quintet's packed parameters (models/weights/table.h). Adapters name modules; the forward
// pass knows parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "models/weights/table.h"

namespace quintet {

struct LinearModule {
  // Path of the module in the Python model, such as encoder.block.0.layer.0.SelfAttention.q, with
  // the prefix `transformer.` in classes that have it. PEFT matches its patterns with this name.
  std::string name;
  // `name` without `transformer.`, in each spelling that files use. Error messages use element 0.
  std::vector<std::string> spellings;
  // The module's outputs are rows [row, row + rows) of this parameter (WeightSlot::name). The
  // module has `columns` inputs.
  std::string parameter;
  int64_t row = 0, rows = 0, columns = 0;
  bool head = false;  // part of a task head or the language-model head
};

// A tensor of a task head that modules_to_save can replace as a whole: the weight or the bias of a
// linear module that is part of the head (LinearModule::head).
struct HeadTensor {
  std::string module;     // name of the linear module, such as classification_head.dense
  std::string name;       // name of the tensor: module.weight or module.bias
  std::string parameter;  // WeightSlot::name
  std::vector<int64_t> shape;
};

struct ModuleTable {
  std::vector<LinearModule> linear;  // in the order of the parameters
  std::vector<HeadTensor> head;
};

// Lists the modules of a model, under Hugging Face's names even if the model is a converted one.
ModuleTable ListModules(const ModelConfig& config);

}  // namespace quintet
