// Adds the flags of a subcommand that --help shows together.
#pragma once

#include <string>
#include <utility>

#include "CLI/CLI.hpp"

namespace quintet {

class FlagGroup {
 public:
  // `name`: the heading in --help. The object must not outlive `command`.
  FlagGroup(CLI::App* command, std::string name) : command_(command), name_(std::move(name)) {}

  // Adds a flag that sets *value, whose present value is the default. `unit`: as in --help.
  template <typename T>
  CLI::Option* Add(const char* name, T* value, const char* unit, const std::string& help) {
    return command_->add_option(name, *value, help)->type_name(unit)->group(name_);
  }
  // Adds such a flag whose values `check` restricts.
  template <typename T>
  CLI::Option* Add(const char* name, T* value, const char* unit, const std::string& help,
                   CLI::Validator check) {
    return Add(name, value, unit, help)->check(std::move(check));
  }
  // Adds a boolean flag, which needs no value on the command line.
  CLI::Option* AddSwitch(const char* name, bool* value, const std::string& help) {
    return command_->add_flag(name, *value, help)->group(name_);
  }

 private:
  CLI::App* command_;
  std::string name_;
};

}  // namespace quintet
