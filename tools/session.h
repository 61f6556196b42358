// A loaded model with its tokenizer and engine. Used by generate, encode, score, classify and
// bench.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/warm_up.h"
#include "models/model.h"
#include "models/tokenizers/tokenizer.h"
#include "tools/command_line.h"
#include "tools/placement.h"

namespace quintet {

struct ModelFlags {
  std::string model;  // directory
  Placement placement;
  int threads = 0;                        // compute threads; 0: DefaultThreads
  int64_t max_running = 0;                // sequences decoded concurrently; 0: automatic
  int64_t max_input_tokens = 4096;        // limit of each input
  int64_t max_batch_tokens = 0;           // limit of tokens encoded in one batch; 0: automatic
  int64_t cache_mib = 0;                  // size of the KV cache; 0: automatic
  int64_t max_memory_mib = 0;             // all memory of the model; 0: no limit
  bool ignore_generation_fields = false;  // warn instead of failing CheckGenerationSupported
};
void AddModelFlags(CommandLine& line, CLI::App* command, ModelFlags* flags);
CLI::Option* AddMaxMemoryFlag(CLI::App* command, int64_t* mib);
void AddIgnoreGenerationFieldsFlag(CLI::App* command, bool* ignore);
CLI::Option* AddThreadsFlag(CLI::App* command, int* threads);  // 0: DefaultThreads
// Returns a line for --print-config: the limits that a process with these flags would have,
// automatic ones included. Empty if the model or the device cannot be opened.
std::string LimitsNote(const std::string& model, const Placement& placement,
                       const LimitRequest& request);
LimitRequest LimitRequestOf(const ModelFlags& flags);

// Adds a flag with values from 1 to `most`, or auto (the default), which sets *value to 0.
CLI::Option* AddAutomaticFlag(CLI::App* command, const char* name, int64_t* value, int64_t most,
                              const char* help);

struct Session {
  ModelFlags flags;
  ModelConfig config;
  GenerationDefaults defaults;
  std::unique_ptr<Device> device;  // null: the CPU
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<const Tokenizer> tokenizer;  // null if not requested or absent
  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;
  double load_seconds = 0;
  int64_t free_bytes_before = 0;  // bytes of device memory free before loading
};

enum class TokenizerNeed : uint8_t { kNone, kIfThere, kRequired };

struct SessionNeeds {
  RequestKind kind = RequestKind::kGenerate;
  TokenizerNeed tokenizer = TokenizerNeed::kRequired;
  int64_t queue = 0;  // maximum number of queued requests; 0: LinesInFlight
  WarmUpShapes warm_up = WarmUpShapes::kLargest;
  bool decodes = false;  // the command generates: use generation_config.json
};

// Loads the model and creates the engine. On failure prints the reason, sets *exit_code and returns
// null.
std::unique_ptr<Session> OpenSession(const ModelFlags& flags, const SessionNeeds& needs,
                                     int* exit_code);

// Checks token ids against --max-input-tokens. Longer inputs are truncated, except for a final
// end-of-sequence id, which is kept; if `truncate` is false they are INVALID_ARGUMENT. An empty
// GPT-2 prompt becomes its bos id, as in Hugging Face's generate; any other empty input is
// INVALID_ARGUMENT.
absl::StatusOr<std::vector<int32_t>> TruncateInput(const Session& session, std::vector<int32_t> ids,
                                                   bool truncate);

}  // namespace quintet
