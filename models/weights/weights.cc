#include "models/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/carver.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/weight.h"
#include "kernels/runtime/device.h"
#include "models/checkpoint/weight_files.h"
#include "models/weights/position.h"
#include "models/weights/table.h"

namespace quintet {
namespace {

// Bytes per read of one thread: large enough for the disk, small enough for the thread's CPU cache
// and for a small peak memory.
constexpr int64_t kBlockBytes = 1 << 20;

// kAll loads all weights. kShapes (for DescribeWeights) loads only the vectors: of matrices it sets
// the shapes without allocating memory, and embeddings remain undefined tensors.
enum class Extent : uint8_t { kAll, kShapes };

// Owns the memory of a model's tensors while they are being loaded.
struct Storage {
  std::vector<Buffer> resident;  // tables; in the end, on a GPU, all tensors
  std::vector<Buffer> host;      // vectors and bias tables, which are built on the host
};

// Work item of one thread: read rows [begin, end) of one parameter, change them (null: not) and
// store them.
struct Task {
  const PlannedWeight* weight;
  const WeightChanges* changes;
  int64_t begin, end;

  void Change(int64_t row, int64_t rows, float* values) const {
    if (changes == nullptr) return;
    changes->Apply(weight->slot.name, row, rows, weight->columns(), values);
  }
};

int64_t BlockRows(const PlannedWeight& weight) {
  const int64_t row_bytes = std::max<int64_t>(StagingBytes(weight, 1), 1);
  const int64_t packs = kBlockBytes / row_bytes / LinearWeight::kPackRows;
  return std::max<int64_t>(packs, 1) * LinearWeight::kPackRows;
}

// Splits the parameters into blocks of rows. A block of a gated weight must not contain both gate
// and up rows (LinearWeight::Pack).
std::vector<Task> SplitIntoTasks(const std::vector<PlannedWeight>& plan,
                                 const WeightChanges* changes, Extent extent) {
  std::vector<Task> tasks;
  for (const PlannedWeight& weight : plan) {
    if (extent == Extent::kShapes && weight.slot.kind != WeightKind::kVector) continue;
    const bool changed = changes != nullptr && changes->Change(weight.slot.name);
    const int64_t rows = weight.rows();
    const int64_t part = weight.slot.gated ? rows / 2 : rows;
    const int64_t block = weight.slot.kind == WeightKind::kVector ? rows : BlockRows(weight);
    for (int64_t start = 0; start < rows; start += part) {
      for (int64_t begin = start; begin < start + part; begin += block) {
        tasks.push_back(
            {&weight, changed ? changes : nullptr, begin, std::min(begin + block, start + part)});
      }
    }
  }
  return tasks;
}

Tensor DenseOf(void* data, DType dtype, const std::vector<int64_t>& shape) {
  if (shape.empty()) return Tensor::Dense(data, dtype, {});
  return shape.size() == 1 ? Tensor::Dense(data, dtype, {shape[0]})
                           : Tensor::Dense(data, dtype, {shape[0], shape[1]});
}

// Returns the dtype in memory of an embedding table: that of the file. Exception: a table that is
// decoded from a block format to f32 gets a 16-bit type, unless options.type is f32.
DType TableType(const PlannedWeight& weight, const WeightOptions& options) {
  const StoredTensor& values = *weight.pieces[0].values;
  const DType stored = *ToDType(values.type);
  if (values.encoding == nullptr || stored != DType::kF32 || options.type == WeightType::kF32) {
    return stored;
  }
  return options.type == WeightType::kF16 ? DType::kF16 : DType::kBF16;
}

int64_t TableBytes(const PlannedWeight& weight, const WeightOptions& options) {
  return weight.rows() * weight.columns() * DTypeBytes(TableType(weight, options));
}

WeightType TypeOf(const WeightSlot& slot, const WeightOptions& options) {
  const DType stored = WeightDType(options.type);
  if (stored == DType::kF8 && slot.wide) return WeightType::kBF16;
  if (QuantizesInputs(options.type) && slot.shape[1] < kMinQuantizedInputs) {
    return stored == DType::kF8 ? WeightType::kF8 : WeightType::kI8;
  }
  return options.type;
}

// Allocates every parameter: matrices and embedding tables in memory of the model's backend,
// vectors in one host buffer.
absl::Status AllocateParameters(const std::vector<PlannedWeight>& plan,
                                const WeightOptions& options, Extent extent, Storage* storage) {
  Carver sizes(nullptr);
  for (const PlannedWeight& weight : plan) {
    if (weight.slot.kind == WeightKind::kVector) sizes.Take(weight.rows() * weight.columns() * 4);
  }
  QT_ASSIGN_OR_RETURN(Buffer vectors, Buffer::Allocate(sizes.used_bytes()));
  Carver carver(vectors.data());
  for (const PlannedWeight& weight : plan) {
    const WeightSlot& slot = weight.slot;
    if (slot.kind == WeightKind::kVector) {
      *slot.tensor =
          DenseOf(carver.Take(weight.rows() * weight.columns() * 4), DType::kF32, slot.shape);
    } else if (slot.kind == WeightKind::kTable) {
      if (extent == Extent::kShapes) continue;
      const int64_t bytes = TableBytes(weight, options);
      QT_ASSIGN_OR_RETURN(Buffer table, options.device == nullptr
                                            ? Buffer::Allocate(bytes)
                                            : options.device->Allocate(bytes));
      *slot.tensor = DenseOf(table.data(), TableType(weight, options), slot.shape);
      storage->resident.push_back(std::move(table));
    } else {
      const auto make = extent == Extent::kAll ? LinearWeight::Allocate : LinearWeight::Describe;
      QT_ASSIGN_OR_RETURN(*slot.matrix, make(slot.shape[0], slot.shape[1], TypeOf(slot, options),
                                             slot.gated, options.device));
    }
  }
  storage->host.push_back(std::move(vectors));
  return absl::OkStatus();
}

void ConvertScalar(const Tensor& value, float* to) {
  if (value.dtype == DType::kI64) {
    *to = static_cast<float>(*value.as<int64_t>());
  } else if (value.dtype == DType::kI32) {
    *to = static_cast<float>(*value.as<int32_t>());
  } else {
    ConvertToF32(value.data, value.dtype, 1, to);
  }
}

// Stores rows that the file has in another type, or that are changed.
void StoreConverted(const Task& task, int64_t row, const Tensor& values, const Tensor& scales) {
  const int64_t rows = values.dim[0], columns = values.dim[1];
  std::vector<float> floats(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) RowToF32(values, scales, r, floats.data() + r * columns);
  task.Change(row, rows, floats.data());
  task.weight->slot.matrix->Pack(row, Tensor::F32(floats.data(), {rows, columns}));
}

void StoreMatrix(const Task& task, int64_t row, const Tensor& values, const Tensor& scales) {
  LinearWeight* const matrix = task.weight->slot.matrix;
  if (task.changes != nullptr) return StoreConverted(task, row, values, scales);
  if (!IsQuantized(values.dtype)) return matrix->Pack(row, values);
  if (values.dtype != WeightDType(matrix->type())) {
    return StoreConverted(task, row, values, scales);
  }
  matrix->PackQuantized(row, values, scales);
}

// Copies `values`, rows of an embedding as read from the file, to `rows`, a part of the table in
// memory, and converts them to its dtype.
void StoreRows(const Tensor& values, const Tensor& rows, Device* device) {
  const int64_t bytes = values.elements() * DTypeBytes(rows.dtype);
  const void* source = values.data;
  std::vector<char> rounded;
  if (values.dtype != rows.dtype) {
    rounded.resize(static_cast<size_t>(bytes));
    ConvertFromF32(values.f32(), values.elements(), rows.dtype, rounded.data());
    source = rounded.data();
  }
  if (device != nullptr) return device->Write(rows.data, source, bytes);
  std::memcpy(rows.data, source, static_cast<size_t>(bytes));
}

// True if the rows of `weight` can be read from the file directly into slot.tensor.
bool ReadsInPlace(const PlannedWeight& weight, Device* device) {
  return weight.slot.kind == WeightKind::kTable && device == nullptr &&
         weight.slot.tensor->dtype == *ToDType(weight.pieces[0].values->type);
}

absl::Status RunTask(const WeightFiles& files, const Task& task, Device* device, void* staging) {
  const WeightSlot& slot = task.weight->slot;
  const auto store = [&](int64_t row, const Tensor& values, const Tensor& scales) {
    if (slot.kind == WeightKind::kMatrix) {
      StoreMatrix(task, row, values, scales);
    } else if (slot.kind == WeightKind::kTable) {
      if (ReadsInPlace(*task.weight, device)) return;
      StoreRows(values, slot.tensor->Rows(row, row + values.dim[0]), device);
    } else if (slot.shape.empty()) {
      ConvertScalar(values, slot.tensor->f32());
    } else {
      float* const rows = slot.tensor->f32() + row * task.weight->columns();
      ConvertToF32(values.data, values.dtype, values.elements(), rows);
      task.Change(row, values.dim[0], rows);
    }
  };
  void* destination = staging;
  if (ReadsInPlace(*task.weight, device)) {
    destination = slot.tensor->Rows(task.begin, task.end).data;
  }
  return VisitRows(files, *task.weight, task.begin, task.end, destination, store);
}

absl::Status RunTasks(const WeightFiles& files, const std::vector<Task>& tasks, Device* device,
                      ThreadPool* pool) {
  int64_t staging_bytes = 0;
  for (const Task& task : tasks) {
    if (ReadsInPlace(*task.weight, device)) continue;
    staging_bytes = std::max(staging_bytes, StagingBytes(*task.weight, task.end - task.begin));
  }
  std::vector<Buffer> staging;
  for (int i = 0; i < pool->threads(); ++i) {
    QT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(staging_bytes));
    staging.push_back(std::move(buffer));
  }
  std::mutex mutex;
  absl::Status first_error;
  pool->ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!first_error.ok()) return;
    }
    const absl::Status status = RunTask(files, tasks[static_cast<size_t>(i)], device,
                                        staging[static_cast<size_t>(thread)].data());
    if (status.ok()) return;
    std::lock_guard<std::mutex> lock(mutex);
    if (first_error.ok()) first_error = status;
  });
  return first_error;
}

// Builds the position bias of each layer of a stack. Unless config.bias_per_layer is true, all
// layers share the position bias of layer 0.
absl::Status BuildBiases(const ModelConfig& config, bool causal,
                         const std::vector<PositionParameters>& parameters, StackWeights* stack,
                         std::vector<Buffer>* storage) {
  for (size_t n = 0; n < stack->layers.size(); ++n) {
    if (n > 0 && !config.bias_per_layer) {
      stack->layers[n].bias = stack->layers[0].bias;
      stack->layers[n].global_bias = stack->layers[0].global_bias;
      continue;
    }
    QT_ASSIGN_OR_RETURN(stack->layers[n].bias,
                        BuildPositionBias(config, causal, parameters[n], storage));
    if (causal) continue;
    QT_ASSIGN_OR_RETURN(stack->layers[n].global_bias,
                        BuildGlobalBias(config, parameters[n], storage));
  }
  return absl::OkStatus();
}

// Copies host buffers to a device. After Copy, Move changes a Tensor that points into one of these
// host buffers so that it points into the buffer's copy on the device.
class HostToDevice {
 public:
  explicit HostToDevice(Device* device) : device_(device) {}

  absl::Status Copy(const std::vector<Buffer>& buffers, std::vector<Buffer>* storage) {
    for (const Buffer& buffer : buffers) {
      if (buffer.bytes() == 0) continue;
      QT_ASSIGN_OR_RETURN(Buffer copy, device_->Allocate(buffer.bytes()));
      device_->Write(copy.data(), buffer.data(), buffer.bytes());
      copied_.push_back({buffer.as<char>(), buffer.bytes(), copy.as<char>()});
      storage->push_back(std::move(copy));
    }
    return absl::OkStatus();
  }

  void Move(Tensor* tensor) const {
    if (!tensor->defined()) return;
    for (const Copied& c : copied_) {
      const int64_t offset = tensor->as<char>() - c.host;
      if (offset < 0 || offset >= c.bytes) continue;
      tensor->data = c.device + offset;
      return;
    }
    QT_CHECK(!tensor->defined());
  }

 private:
  struct Copied {
    const char* host;
    int64_t bytes;
    char* device;
  };

  Device* device_;
  std::vector<Copied> copied_;
};

// Converts an f32 vector to another dtype, in a new buffer appended to `storage`.
absl::Status ConvertVector(DType dtype, Tensor* vector, std::vector<Buffer>* storage) {
  if (!vector->defined() || dtype == DType::kF32) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(Buffer rounded, Buffer::Allocate(vector->elements() * DTypeBytes(dtype)));
  ConvertFromF32(vector->f32(), vector->elements(), dtype, rounded.data());
  *vector = Tensor::Dense(rounded.data(), dtype, {vector->elements()});
  storage->push_back(std::move(rounded));
  return absl::OkStatus();
}

absl::Status MoveToDevice(const std::vector<PlannedWeight>& plan, Device* device,
                          ModelWeights* weights, Storage* storage) {
  for (StackWeights* stack : {&weights->encoder, &weights->decoder}) {
    for (LayerWeights& layer : stack->layers) {
      for (Tensor* bias : {&layer.qkv_bias, &layer.ffn_in_bias}) {
        QT_RETURN_IF_ERROR(ConvertVector(weights->activations, bias, &storage->host));
      }
    }
  }
  HostToDevice move(device);
  QT_RETURN_IF_ERROR(move.Copy(storage->host, &storage->resident));
  for (const PlannedWeight& weight : plan) {
    if (weight.slot.kind == WeightKind::kVector) move.Move(weight.slot.tensor);
  }
  for (StackWeights* stack : {&weights->encoder, &weights->decoder}) {
    for (LayerWeights& layer : stack->layers) {
      PositionBias& bias = layer.bias;
      for (Tensor* table : {&bias.table, &bias.slopes, &bias.knots, &bias.segment_slope,
                            &bias.segment_offset, &layer.global_bias.table}) {
        move.Move(table);
      }
    }
  }
  storage->host.clear();
  return device->status();
}

void CountTotals(const std::vector<PlannedWeight>& plan, const WeightOptions& options,
                 Extent extent, ModelWeights* weights) {
  std::unordered_set<const StoredTensor*> counted;
  for (const PlannedWeight& weight : plan) {
    for (const WeightPiece& piece : weight.pieces) {
      if (!counted.insert(piece.values).second) continue;
      weights->parameters += piece.values->bytes / StoredTypeBytes(piece.values->type);
    }
    if (weight.slot.matrix != nullptr) weights->bytes += weight.slot.matrix->bytes();
    if (extent == Extent::kShapes && weight.slot.kind == WeightKind::kTable) {
      weights->bytes += TableBytes(weight, options);
    }
  }
  for (const Buffer& buffer : weights->storage) weights->bytes += buffer.bytes();
}

absl::StatusOr<ModelWeights> FillWeights(const std::string& model, ModelConfig* config,
                                         const WeightOptions& options, Extent extent,
                                         ThreadPool* pool) {
  if (!WeightTypeSupported(options.type, options.device)) {
    return absl::UnimplementedError("this weight type is not supported on this CPU or GPU");
  }
  QT_ASSIGN_OR_RETURN(const std::unique_ptr<const WeightFiles> files,
                      WeightFiles::Open(model, options.follow_symlinks));
  WeightDestinations destinations;
  QT_ASSIGN_OR_RETURN(const std::vector<PlannedWeight> plan,
                      PlanWeights(*files, config, &destinations));

  ModelWeights& weights = destinations.weights;
  weights.activations = ActivationType(options.type, options.device);
  Storage storage;
  QT_RETURN_IF_ERROR(AllocateParameters(plan, options, extent, &storage));
  weights.changed = options.changes != nullptr && QuantizedChange(plan, *options.changes).empty();
  // Only the shapes of most parameters are wanted, so none is changed.
  const bool change = weights.changed && extent == Extent::kAll;
  QT_RETURN_IF_ERROR(RunTasks(*files,
                              SplitIntoTasks(plan, change ? options.changes : nullptr, extent),
                              options.device, pool));
  QT_RETURN_IF_ERROR(
      BuildBiases(*config, false, destinations.encoder_position, &weights.encoder, &storage.host));
  QT_RETURN_IF_ERROR(
      BuildBiases(*config, true, destinations.decoder_position, &weights.decoder, &storage.host));
  if (options.device != nullptr) {
    QT_RETURN_IF_ERROR(MoveToDevice(plan, options.device, &weights, &storage));
  }
  weights.storage = std::move(storage.resident);
  for (Buffer& buffer : storage.host) weights.storage.push_back(std::move(buffer));
  weights.logit_scale =
      *config->scale_logits ? 1.0f / std::sqrt(static_cast<float>(config->d_model)) : 1.0f;
  CountTotals(plan, options, extent, &weights);
  return std::move(destinations.weights);
}

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(const std::string& model, ModelConfig* config,
                                         const WeightOptions& options, ThreadPool* pool) {
  return FillWeights(model, config, options, Extent::kAll, pool);
}

absl::StatusOr<ModelWeights> DescribeWeights(const std::string& model, ModelConfig* config,
                                             const WeightOptions& options, ThreadPool* pool) {
  return FillWeights(model, config, options, Extent::kShapes, pool);
}

}  // namespace quintet
