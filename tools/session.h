// A loaded model with its tokenizer and engine: what generate, encode, score, classify and bench
// have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "models/model.h"
#include "models/tokenizer.h"
#include "tools/command_line.h"
#include "tools/placement.h"

namespace quintet {

struct ModelFlags {
  std::string model;  // directory
  Placement placement;
  int threads = 0;           // 0: AvailableCores()
  int64_t max_running = 64;  // sequences decoded at once
  int64_t max_input_tokens = 4096;
  int64_t max_batch_tokens = 4096;        // encoded at once
  int64_t cache_mib = 1024;               // keys and values
  int64_t max_memory_mib = 0;             // of everything; 0: no limit
  bool ignore_generation_fields = false;  // see CheckFollowed
};
void AddModelFlags(CommandLine& line, CLI::App* command, ModelFlags* flags);
CLI::Option* AddMaxMemoryFlag(CLI::App* command, int64_t* mib);
void AddIgnoreGenerationFieldsFlag(CLI::App* command, bool* ignore);
CLI::Option* AddThreadsFlag(CLI::App* command, int* threads);  // 0: AvailableCores()

struct Session {
  ModelFlags flags;
  ModelConfig config;
  GenerationDefaults defaults;
  std::unique_ptr<Device> device;  // null: the CPU
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<const Tokenizer> tokenizer;  // null when not wanted or not there
  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;
  double load_seconds = 0;
  int64_t free_bytes_before = 0;  // of the device, before the model was loaded
};

enum class TokenizerNeed : uint8_t { kNone, kIfThere, kRequired };

struct SessionNeeds {
  RequestKind kind = RequestKind::kGenerate;
  TokenizerNeed tokenizer = TokenizerNeed::kRequired;
  int64_t queue = 256;   // requests that wait in the engine at most
  bool decodes = false;  // follows generation_config.json
};

// Null on failure: the reason is printed and *exit_code set.
std::unique_ptr<Session> OpenSession(const ModelFlags& flags, const SessionNeeds& needs,
                                     int* exit_code);

// Token ids as the model is to see them, or INVALID_ARGUMENT when there are too many and `truncate`
// is off. Truncation keeps the end-of-sequence id. A GPT-2 prompt without any id becomes its bos
// id, as in Hugging Face's generate.
absl::StatusOr<std::vector<int32_t>> FitInput(const Session& session, std::vector<int32_t> ids,
                                              bool truncate);

}  // namespace quintet
