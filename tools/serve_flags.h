// Flags of `quintet serve`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "server/server.h"
#include "tools/command_line.h"
#include "tools/placement_flags.h"

namespace quintet {

struct ServeFlags {
  std::vector<std::string> models;  // MODEL or NAME=MODEL (FindModel)
  std::string tokenizer;            // empty: that of the model
  bool follow_symlinks = false;
  Placement placement;
  int engines = 1;  // on a CPU
  int threads = 0;
  ServerOptions server;
  EngineLimits engine = {.prefill_share = 0.75};
  std::optional<int64_t> encoder_cache_bytes;  // unset: DefaultEncoderCacheBytes
  DecodingLimits decoding;
  bool ignore_generation_fields = false;
  int64_t max_running = 0, max_batch_tokens = 0, cache_mib = 0;  // 0: automatic
  int64_t max_memory_mib = 0;
  double default_timeout_s = 60, max_timeout_s = 600;
  double drain_delay_s = 5, drain_timeout_s = 30, stall_timeout_s = 30;
  std::string metrics_compat;
  bool access_log = false;
  std::vector<ModelSection> sections;          // settings of models in the --config file
  std::map<std::string, std::string> prompts;  // set by a model's section
  std::vector<AdapterSource> adapters;         // set by a model's section
  std::optional<std::string> default_prompt;   // set by a model's section
  TextTemplates templates;                     // set by a model's section
  int64_t idle_unload_us = 0;                  // set by a model's section
  int64_t adapter_slots = 0;                   // set by a model's section; 0: automatic
};

void AddServeFlags(CommandLine& line, CLI::App* command, ServeFlags* flags);
// Returns the server options that result from the flags, with all defaults and the device auto
// resolved. Returns the error of FindModel for the first model that is not found; the message
// begins with the model.
absl::StatusOr<ServerOptions> ServerOptionsOf(const ServeFlags& flags);
// Returns INVALID_ARGUMENT if a section of the --config file names a model that is not served.
absl::Status CheckModelSections(const ServeFlags& flags, const ServerOptions& server);

}  // namespace quintet
