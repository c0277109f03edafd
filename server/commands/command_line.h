// The command line of one command: its share of the option table and options of its own.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/options/options.h"

namespace lockstep {

class CommandLine {
 public:
  // `command` is the bit of the rows that this command takes; 0 for none, then there is no
  // --config.
  CommandLine(const std::string& name, std::string description, unsigned command);

  // For options of the command's own; those of the table are there already.
  CLI::App& app() { return app_; }

  // Reads the arguments and what the environment and the file add. What ends the program here
  // (--help, --version, an error with its message on stderr) comes back as its exit code.
  std::expected<OptionValues, int> parse(const std::vector<std::string>& arguments);

  // The places where parse() has found them; resolve_options() finds them there again.
  OptionSources sources() const;

 private:
  void add_row(const OptionRow& row);

  CLI::App app_;
  unsigned command_;
  std::map<std::string, std::string> given_;  // by option name, filled by CLI11
  std::string config_;
};

// "lockstepd: message" on standard error; returns the exit code of the error.
int report(const Error& error);

// The options of a command whose output is what counts: unless a log level was given, only warnings
// are logged.
Options to_quiet_options(const OptionValues& values);

// Log lines go to standard error from here on.
void start_log(const Options& options);

// kInvalidInput with the remedy if these options name no model.
Result<void> check_model_given(const Options& options);

// Checks these options and their model without loading it. Waits for no other host.
Result<void> check_engine(const Options& options);

// Opens the model of these options; kInvalidInput with the remedy if none is given.
// `kept`: see Engine::open(). `stop`: waiting for other hosts ends when it is true. `on_waiting`:
// see HostOptions.
Result<std::unique_ptr<Engine>> open_engine(
    const Options& options, std::vector<KeptDescriptor> kept = {},
    const std::atomic<bool>* stop = nullptr,
    std::function<void(const std::string& whom)> on_waiting = {});

// All bytes of the file that an option names; kInvalidInput names both, and ends with `remedy`.
Result<std::string> read_file(const std::filesystem::path& path, std::string_view option,
                              std::string_view remedy = "");

// "1,8,32" as counts from 0 to `maximum`; kInvalidInput names `option`.
Result<std::vector<uint32_t>> parse_counts(std::string_view text, std::string_view option,
                                           uint32_t maximum);

}  // namespace lockstep
