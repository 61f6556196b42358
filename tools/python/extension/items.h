// The inputs of generate, stream, encode, score and classify as work of the EngineRunner, and their
// results as Python objects.
#pragma once

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
  bool one = false;      // the call has a single input
  double timeout_s = 0;  // of each input, from its push; 0: none
  // kGenerate
  DecodingRequest decoding;
  bool stream = false;
  // kEncode
  EmbeddingOptions embedding_options;
  std::optional<Embedding> embedding;  // of these options and the session
  // kScore
  bool target_special_tokens = true, prefix_lm = false;
  int64_t top_logprobs = 0, sliding_window = 0;
  // kClassify
  int64_t top_k = 1, max_answer_tokens = 30;
};

// The embeddings of a call, [rows, columns] f32; numpy and the items share it.
struct Embeddings {
  Embeddings(int64_t row_count, int64_t column_count)
      : rows(row_count),
        columns(column_count),
        values(new float[static_cast<size_t>(row_count * column_count)]) {}
  float* Row(int64_t row) const { return values.get() + row * columns; }
  void FillWithNan(int64_t row);  // the row of an input that fails
  int64_t rows, columns;
  std::unique_ptr<float[]> values;
};

class Item : public WorkItem {
 public:
  Item(std::shared_ptr<const CallOptions> options, Input input)
      : options_(std::move(options)), input_(std::move(input)) {}

  absl::StatusOr<Request> Prepare() final;
  absl::Status Finish(Result result) override;
  // The result as a Python object; needs the GIL. Called after Finish.
  virtual nb::object ToPython() = 0;

 protected:
  // Completes the request, whose input, kind and deadline are set.
  virtual absl::Status Complete(Request* request) = 0;
  nb::object Usage() const;

  const std::shared_ptr<const CallOptions> options_;
  Input input_;
  Result result_;

 private:
  const int64_t deadline_us_ = DeadlineOf(*options_);
  static int64_t DeadlineOf(const CallOptions& options);
};

// Makes the item of one input. `extra`: the targets of score, the context of classify, or None.
// `row`: of `embeddings`, which may be null; only for encode.
std::unique_ptr<Item> MakeItem(const std::shared_ptr<const CallOptions>& options, nb::handle input,
                               nb::handle extra, std::shared_ptr<Embeddings> embeddings,
                               int64_t row);

nb::object ChunkToPython(const TokenChunk& chunk);

// A float32 array [rows, columns] (rows < 0: [columns]) that owns `values`.
nb::object ArrayOf(std::vector<float> values, int64_t rows, int64_t columns);
// A float32 array [rows, columns] that shares the memory of `embeddings`.
nb::object ArrayOf(std::shared_ptr<Embeddings> embeddings);

nb::object ToStr(const std::string& text);  // bytes that are not UTF-8 become U+FFFD

}  // namespace quintet::python
