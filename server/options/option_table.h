// Every option of the program, in one table: the command line, the environment, the configuration
// file, --help and --print-config are all read off it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/engine.h"
#include "server/http/http_options.h"

namespace lockstep {

// Several hosts that compute one model, as they were given (host_choice.h).
struct GivenHosts {
  std::vector<std::string> addresses = {};  // of all, the leader's first
  std::optional<size_t> count = {};         // instead, with the leader's address
  std::string leader = {};
  std::optional<size_t> index = {};
  std::string group = {};
  std::string secret_file = {};
  bool insecure = false;
  double silent_seconds = 5;
  std::string transport = "tcp";
};

// The options as the program uses them.
struct Options {
  EngineOptions engine = {};
  GivenHosts hosts = {};
  std::vector<std::string> served_model_names = {};  // empty: the model's own name
  HttpOptions http = {};                             // its callbacks are left empty
  std::string probe_host = {};  // as http.host; empty: no socket for health and metrics alone
  uint16_t probe_port = 8081;
  std::string api_keys = {};  // the file; empty: none are asked for
  bool metrics_without_key = false;
  std::vector<std::string> allowed_hosts = {};  // as AllowedHosts has them, where there are no keys
  double drain_seconds = 30;
  double request_seconds = 0;             // after which a request ends; 0: never
  uint32_t choices_max = 128;             // "n" of a request at most
  uint64_t answer_bytes_max = 256 << 20;  // of an answer that is collected before it is sent
  bool metrics = true;
  double stall_seconds = 30;
  bool ui = true;
  std::string keep_weights = "auto";
  std::string metrics_aliases = "none";
  std::string kv_events = {};      // where they are published; empty: nowhere
  std::string kv_events_pod = {};  // this server in their topic; empty: the host's name
  std::string log_level = "info";
  std::string log_format = "logfmt";
  bool log_prompts = false;
};

enum class OptionType {
  kText,
  kTextList,  // JSON: a list of strings, or one; elsewhere: separated by commas
  kInteger,
  kIntegerOrAuto,  // or the word "auto"
  kNumber,
  kBoolean,
  kBooleanOrAuto,
  kChoice,  // one of `choices`
  kShares,  // "even", "auto", or numbers above 0 with colons between: "3:1"
};

// The commands that take an option on their command line, as a set of bits.
enum OptionCommand : unsigned {
  kServe = 1,
  kGenerate = 2,
  kBench = 4,
  kPlan = 8,
  kEvaluate = 16,
  kCheckHealth = 32,
  kSimulate = 64,
};

struct OptionRow {
  std::string_view name;  // --name, the key "name" of the file, LOCKSTEP_NAME
  unsigned commands;      // of OptionCommand
  OptionType type;
  Json default_value;
  double minimum = 0;  // of the numbers, inclusive
  double maximum = 0;
  std::vector<std::string_view> choices;
  std::string_view help;
  void (*apply)(const Json& value, Options& options);  // the value has been checked
  bool reloadable = false;  // SIGHUP puts another value of it into effect
};

std::span<const OptionRow> option_table();

// The row of this name, or null.
const OptionRow* find_option(std::string_view name);

// "LOCKSTEP_BATCH_TOKENS" for "batch-tokens".
std::string environment_name(const OptionRow& row);

// "an integer from 1 to 65536, or auto": what a value must be.
std::string describe_range(const OptionRow& row);

// A value as the command line and the environment give it, or as the configuration file does.
// `origin` names the place for the message ("--port", "LOCKSTEP_PORT", "\"port\" in x.json").
Result<Json> option_from_text(const OptionRow& row, std::string_view text, std::string_view origin);
Result<Json> option_from_json(const OptionRow& row, const Json& value, std::string_view origin);

}  // namespace lockstep
