// A loaded model with its tokenizer and engine, as the command line and the Python module use it,
// and the checks of the inputs that users give them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/adapter_registry.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/placement.h"
#include "engine/warm_up.h"
#include "models/config/sentence_modules.h"
#include "models/model.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

inline constexpr size_t kMaxTextBytes = 1 << 20;  // limit of each input text
inline constexpr size_t kMaxTargets = 64;         // limit of the targets of one input of score

// The options of a session. Error messages about them use the names of the command line's flags.
struct SessionOptions {
  std::string model;                    // directory, file or hub id (FindModel)
  std::string tokenizer;                // directory, file or hub id; empty: that of the model
  bool follow_symlinks = false;         // read model files that are symbolic links to anywhere
  std::vector<AdapterSource> adapters;  // LoRA adapters to load with the model
  int64_t adapter_slots = 0;            // adapters used at the same time; 0: as many as `adapters`
  bool merge_adapter = false;           // for all requests (LoadOptions::merge_adapter)
  Placement placement;
  // Compute threads of all engines together; 0: DefaultThreads. On a CPU `engines` of them run,
  // each on its own part of the cores.
  int threads = 0, engines = 1;
  int64_t max_running = 0;                // sequences decoded concurrently; 0: automatic
  int64_t max_input_tokens = 4096;        // limit of each input
  int64_t max_batch_tokens = 0;           // limit of tokens encoded in one batch; 0: automatic
  int64_t cache_mib = 0;                  // size of the KV cache; 0: automatic
  int64_t max_memory_mib = 0;             // all memory of the model; 0: no limit
  bool ignore_generation_fields = false;  // warn instead of failing CheckGenerationSupported
};
LimitRequest LimitRequestOf(const SessionOptions& options);
// Returns the options for Model::Load, except the limits, which PlanMemory chooses. If `device` is
// null, the model runs on the CPU.
LoadOptions LoadOptionsOf(const Placement& placement, const ModelConfig& config, Device* device);

struct Session {
  SessionOptions flags;  // `model` is what FindModel found, `threads` is resolved
  ModelConfig config;
  GenerationDefaults defaults;
  std::unique_ptr<Device> device;  // null: the CPU
  std::unique_ptr<ThreadPool> pool;
  std::shared_ptr<const Tokenizer> tokenizer;      // null if not requested or absent
  std::shared_ptr<const SentenceModules> modules;  // null without modules.json
  std::unique_ptr<Model> model;
  AdapterRegistry adapters;  // first those that were loaded with the model
  std::unique_ptr<Engine> engine;
  double load_seconds = 0;
  int64_t free_bytes_before = 0;      // bytes of device memory free before loading
  std::vector<int> cpus;              // of the threads of this engine; empty: any
  const Model* replica_of = nullptr;  // LoadOptions::replica_of
  // The same model on further devices, or on further parts of a CPU's cores. They share tokenizer,
  // modules and adapters with this one, and have no replicas.
  std::vector<std::unique_ptr<Session>> replicas;

  // This session and its replicas.
  std::vector<Session*> all();
  // Maximum number of sequences that all engines together decode concurrently.
  int64_t max_running();
};

enum class TokenizerNeed : uint8_t { kNone, kIfThere, kRequired };

struct SessionNeeds {
  RequestKind kind = RequestKind::kGenerate;
  TokenizerNeed tokenizer = TokenizerNeed::kRequired;
  int64_t queue = 0;  // maximum number of queued requests; 0: RequestsInFlight
  WarmUpShapes warm_up = WarmUpShapes::kLargest;
  bool decodes = false;   // the session generates: use generation_config.json
  bool encodes = false;   // the session makes embeddings: read modules.json
  bool replicas = false;  // the caller uses all engines (Session::all)
};

// Receives messages for the log: warnings, the device chosen for "auto", and debugging details.
struct SessionLog {
  absl::FunctionRef<void(absl::string_view)> warn, info, debug;
};

// Loads the model onto each of `devices` (null: the CPU) and creates their engines: the first is
// the session's own, the others are replicas. On failure the status says what is wrong with the
// model's files, or that memory is short.
absl::StatusOr<std::unique_ptr<Session>> LoadSession(const SessionOptions& options,
                                                     const SessionNeeds& needs,
                                                     std::vector<std::unique_ptr<Device>> devices,
                                                     const SessionLog& log);

// Number of inputs that a caller should have in flight for an engine with `max_running` sequences.
// Results have the order of the inputs, so a long input at the front delays them; four inputs per
// running sequence keep the engine's queue filled meanwhile.
int64_t RequestsInFlight(int64_t max_running);

// Several engines take their requests from one queue, each when it has room.
struct EngineLoad {
  int64_t most = 0;  // maximum number of requests that the engine may have
  int64_t own = 0;   // number that it has
};
// Returns the most requests that one engine may have at a time: with several engines fewer than
// RequestsInFlight, so that at the end of a job none of them has a long queue when others have
// none.
int64_t MostRequests(int64_t max_running, size_t engines);
// Returns how many of the `queued` requests an engine should take now so that all `engines`, which
// have `all` requests together, get the same number.
int64_t ShareOfQueue(const EngineLoad& load, int64_t all, int64_t queued, int64_t engines);

// Refuses options with which every input would fail, so that a job with them fails once, before its
// first input, and not again for each input.
absl::Status CheckDecodingRequest(const Session& session, const DecodingRequest& decoding,
                                  const DecodingLimits& limits);

// Tokenizes `text`. INVALID_ARGUMENT if it is longer than kMaxTextBytes; FAILED_PRECONDITION if the
// model has no tokenizer.
absl::StatusOr<std::vector<int32_t>> EncodeText(const Session& session, absl::string_view text,
                                                bool add_special_tokens);

// Checks token ids against --max-input-tokens. Longer inputs are truncated, except for a final
// end-of-sequence id, which is kept; if `truncate` is false they are INVALID_ARGUMENT. An empty
// GPT-2 prompt becomes its bos id, as in Hugging Face's generate; any other empty input is
// INVALID_ARGUMENT.
absl::StatusOr<std::vector<int32_t>> TruncateInput(const Session& session, std::vector<int32_t> ids,
                                                   bool truncate);

// The input of a question-answering head.
struct Question {
  std::string context;
  std::vector<TokenSpan> spans;                // spans of the context's tokens
  int64_t context_begin = 0, context_end = 0;  // input tokens of the context
};
// Appends the tokens of `context` to *ids, which holds the question's tokens. INVALID_ARGUMENT if
// `context` is too long or has no tokens, or both exceed --max-input-tokens in total.
absl::StatusOr<Question> AddContext(const Session& session, std::string context,
                                    bool add_special_tokens, std::vector<int32_t>* ids);

}  // namespace quintet
