#include "tests/fuzz/served_models.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace quintet {

const ModelHost& ServedModel(uint8_t which) {
  static ThreadPool* const pool = new ThreadPool(1);
  static auto* const registry = new prometheus::Registry();
  static const std::vector<ModelHost*> hosts = [] {
    std::vector<ModelHost*> loaded;
    for (const char* directory :
         {"deploy/models/g2p", "tests/golden/cases/gpt2", "tests/golden/cases/t5-tokcls"}) {
      HostOptions options;
      options.name = directory;
      options.directory = absl::StrCat(QUINTET_SOURCE_DIR, "/", directory);
      options.limits.cache_bytes = 1 << 20;
      loaded.push_back(
          new ModelHost(options, pool,
                        std::make_shared<ModelMetrics>(
                            ModelMetrics::Options{.model_name = options.name}, registry)));
      QT_CHECK(loaded.back()->Prepare().ok());
      QT_CHECK(loaded.back()->Load(/*encoder_cache_bytes=*/0).ok());
    }
    return loaded;
  }();
  return *hosts[which % hosts.size()];
}

}  // namespace quintet
