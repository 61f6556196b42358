// The flags that describe a model, and loading a model with these flags (engine/session.h). Used by
// generate, encode, score, classify and bench.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "engine/memory_plan.h"
#include "engine/session.h"
#include "tools/command_line.h"
#include "tools/placement_flags.h"

namespace quintet {

using ModelFlags = SessionOptions;
void AddModelFlags(CommandLine& line, CLI::App* command, ModelFlags* flags);
// Adds the mandatory flag --model. The model may also be the first positional argument, except in a
// command that has subcommands (bench): there a misspelt subcommand would be taken for a model.
void AddModelArgument(CommandLine& line, CLI::App* command, std::string* model);
void AddTokenizerFlag(CLI::App* command, std::string* tokenizer);
CLI::Option* AddFollowSymlinksFlag(CLI::App* command, bool* follow);
CLI::Option* AddMaxMemoryFlag(CLI::App* command, int64_t* mib);
void AddIgnoreGenerationFieldsFlag(CLI::App* command, bool* ignore);
CLI::Option* AddThreadsFlag(CLI::App* command, int* threads);  // 0: DefaultThreads
CLI::Option* AddEnginesFlag(CLI::App* command, int* engines);
// Returns a text for --print-config: the limits (running sequences, tokens, KV cache, ...) that a
// process with these flags would have, including those that it would choose automatically. Returns
// "" if they cannot be determined, for example because the model cannot be opened.
std::string LimitsNote(const std::string& model, Placement placement, const LimitRequest& request);

// Adds a flag that takes a number from 1 to `most`, or auto. auto is the default and sets *value to
// 0.
CLI::Option* AddAutomaticFlag(CLI::App* command, const char* name, int64_t* value, int64_t most,
                              const char* help);

// Loads the model and creates the engine. On failure prints the reason, sets *exit_code and returns
// null.
std::unique_ptr<Session> OpenSession(const ModelFlags& flags, const SessionNeeds& needs,
                                     int* exit_code);

}  // namespace quintet
