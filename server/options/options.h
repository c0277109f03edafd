// The effective options: the command line beats the environment beats the configuration file beats
// the defaults of the table.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/options/option_table.h"

namespace lockstep {

enum class OptionSource { kDefault, kFile, kEnvironment, kCommandLine };

struct OptionValue {
  Json value;
  OptionSource source = OptionSource::kDefault;
};

// By name; one for every row of the table.
using OptionValues = std::map<std::string, OptionValue, std::less<>>;

// The sources of options, besides the defaults. Each text is checked against its row.
struct OptionSources {
  std::map<std::string, std::string> command_line;               // by name, without dashes
  std::vector<std::pair<std::string, std::string>> environment;  // all variables; others ignored
  std::optional<std::filesystem::path> file;  // --config; LOCKSTEP_CONFIG if there is none
};

// Fails with kInvalidInput that names the option, where it was given, and what it may be: for an
// unknown key or LOCKSTEP_ variable, a wrong type, a value out of range, a file that is no JSON.
Result<OptionValues> resolve_options(const OptionSources& sources);

Options to_options(const OptionValues& values);

// {"port":{"value":8080,"source":"default"},…} in the table's order, indented.
std::string print_options(const OptionValues& values);

// This process's environment.
std::vector<std::pair<std::string, std::string>> process_environment();

}  // namespace lockstep
