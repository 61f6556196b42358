// Loading of models in tests.
#pragma once

#include <memory>
#include <string>

#include "models/model.h"
#include "tests/catch.h"

namespace quintet {

// Fails the test if the model in `directory` cannot be loaded.
inline std::unique_ptr<Model> MustLoad(const std::string& directory, ThreadPool* pool,
                                       const LoadOptions& options = {}) {
  auto model = Model::Load(directory, options, pool);
  INFO(directory << ": " << model.status());
  REQUIRE(model.ok());
  return *std::move(model);
}

}  // namespace quintet
