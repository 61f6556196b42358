// The models of a server by name, in the order of its configuration. ModelLoader adds and removes
// them. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/served_model.h"

namespace quintet {

class ModelDirectory {
 public:
  using Models = std::vector<std::shared_ptr<ServedModel>>;

  Models models() const;
  size_t size() const;
  void Set(Models models);

  // Returns the named model. An empty name stands for the only model. Returns NOT_FOUND if no model
  // has this name, INVALID_ARGUMENT if the name is empty and several models are served. The
  // messages list names of the models that are served.
  absl::StatusOr<std::shared_ptr<ServedModel>> Find(const std::string& model) const;

  // Like Find, but if no model has this name, the name may also be MODEL:ADAPTER. Sets *adapter to
  // the part after the colon, or does not change it.
  absl::StatusOr<std::shared_ptr<ServedModel>> FindWithAdapter(const std::string& model,
                                                               std::string* adapter) const;
  // Whether calls of at least one model are accepted.
  bool accepts() const;
  // Ends all calls that wait for a model and whose deadline has passed.
  void ExpireWaits(int64_t now_us) const;
  // Makes all models reject calls from now on.
  void Drain() const;

 private:
  mutable std::mutex mutex_;
  Models models_;
};

// The model version for all request messages of an RPC (each is a Call, call.h). All RPCs that an
// HTTP request needs get the same version. Null members: each message takes the serving version.
struct ModelBinding {
  std::shared_ptr<ServedModel> model;
  std::shared_ptr<ModelHost> host;
};

}  // namespace quintet
