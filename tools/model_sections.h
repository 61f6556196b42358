// The sections [models.NAME] of a --config file: settings of one model of `quintet serve`.
//
//   [models.g2p]                      a name with other characters than letters, digits, - and _ is
//   dtype = "int8"                    quoted: [models."google/flan-t5-base"]
//   default-prompt-name = "query"
//   [models.g2p.prompts]
//   query = "query: "
//   [models.g2p.adapters]             LoRA adapters by the names that requests use
//   formal = "adapters/formal"
//
// Values are strings, numbers, true and false. Keys are written with dashes or underscores.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quintet {

struct ModelSetting {
  std::string key;          // with dashes: "max-input-tokens"; a prompt or an adapter: its name
  std::string value;        // without quotes and escapes
  std::string where;        // for errors: "serve.toml:4: models.g2p.dtype"
  bool overridden = false;  // a flag or a variable has set it for all models
};

struct ModelSection {
  std::string name;
  std::string where;                   // for errors: "serve.toml:3: [models.g2p]"
  std::vector<ModelSetting> settings;  // in the order of the file
  std::vector<ModelSetting> prompts, adapters;
};

// Parses the sections [models.NAME] of a TOML file whose text is *text, and replaces their lines in
// *text by empty lines. `path` is the name of the file for error messages. Returns
// INVALID_ARGUMENT, which names file, line and key, if a line is not KEY = VALUE, a key or section
// is set twice, a value is not a string, a number, true or false, or the text is not UTF-8.
absl::StatusOr<std::vector<ModelSection>> TakeModelSections(const std::string& path,
                                                            std::string* text);

// Returns the sections as TOML for --print-config. Settings that are `overridden` are left out.
// Returns "" if there are no sections.
std::string PrintModelSections(const std::vector<ModelSection>& sections);

}  // namespace quintet
