// Converts inputs of generate, stream, encode, score and classify to work items of the
// EngineRunner, and their results to Python objects.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/answer_spans.h"
#include "engine/embedding.h"
#include "engine/engine_runner.h"
#include "tools/python/extension/values.h"

namespace quintet::python {

// The options of one call, which all of its items share.
struct CallOptions {
  RequestKind kind = RequestKind::kGenerate;
  const Session* session = nullptr;  // alive while the runner calls items
  bool add_special_tokens = true, truncate = false, skip_special_tokens = true;
  AdapterHandle adapter;  // null: none
  bool one = false;       // the call has a single input
  double timeout_s = 0;   // time limit of each input, from its push; 0: no limit
  // kGenerate
  DecodingRequest decoding;
  bool stream = false;
  // kEncode
  EmbeddingOptions embedding_options;
  std::optional<Embedding> embedding;  // made from embedding_options and the session
  // kScore
  bool target_special_tokens = true, prefix_lm = false;
  int64_t top_logprobs = 0, sliding_window = 0;
  // kClassify
  int64_t top_k = 1, max_answer_tokens = 30;
};

// The embeddings of a call, [rows, columns] f32. The numpy array that the call returns shares this
// memory with the items, each of which writes one row.
struct Embeddings {
  // Allocates uninitialised memory. A large allocation requests huge pages, because with 4 KiB
  // pages the threads that write the rows would spend much of their time on page faults.
  Embeddings(int64_t row_count, int64_t column_count);
  Embeddings(const Embeddings&) = delete;
  Embeddings& operator=(const Embeddings&) = delete;
  ~Embeddings() { std::free(values); }
  float* Row(int64_t row) const { return values + row * columns; }
  void FillWithNan(int64_t row);  // the row of an input that fails
  const int64_t rows, columns;
  float* const values;
};

class Item : public WorkItem {
 public:
  Item(std::shared_ptr<const CallOptions> options, Input input)
      : options_(std::move(options)), input_(std::move(input)) {}

  absl::StatusOr<Request> Prepare() final;
  absl::Status Finish(Result result) override;
  // Returns the result as a Python object. Called after Finish. Needs the GIL.
  virtual nb::object ToPython() = 0;

 protected:
  // Sets the fields of *request that depend on its kind. Prepare has set input, kind and deadline.
  virtual absl::Status Complete(Request* request) = 0;
  nb::object Usage() const;

  const std::shared_ptr<const CallOptions> options_;
  Input input_;
  Result result_;

 private:
  const int64_t deadline_us_ = DeadlineOf(*options_);
  static int64_t DeadlineOf(const CallOptions& options);
};

// Makes the item of one input. `extra`: for score, the targets of the input; for classify, its
// context or None; otherwise None. `embeddings`: for encode, the array to whose row `row` the item
// writes its result, or null; otherwise null.
std::unique_ptr<Item> MakeItem(const std::shared_ptr<const CallOptions>& options, nb::handle input,
                               nb::handle extra, std::shared_ptr<Embeddings> embeddings,
                               int64_t row);

nb::object ChunkToPython(const TokenChunk& chunk);

// Returns a numpy array of float32 that owns `values`. Its shape is [rows, columns], or [columns]
// if `rows` is negative.
nb::object ArrayOf(std::vector<float> values, int64_t rows, int64_t columns);
// Returns a numpy array [rows, columns] of float32 that shares the memory of `embeddings`.
nb::object ArrayOf(std::shared_ptr<Embeddings> embeddings);

nb::object ToStr(const std::string& text);  // bytes that are not UTF-8 become U+FFFD

}  // namespace quintet::python
