#include "server/commands/command_line.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "engine/base/log.h"
#include "server/daemon/log_format.h"
#include "server/options/host_choice.h"
#include "server/options/version.h"

namespace lockstep {
namespace {

std::string type_name(const OptionRow& row) {
  switch (row.type) {
    case OptionType::kText:
      return "TEXT";
    case OptionType::kTextList:
      return "A,B,...";
    case OptionType::kInteger:
    case OptionType::kNumber:
      return fmt::format("{}..{}", row.minimum, row.maximum);
    case OptionType::kIntegerOrAuto:
      return fmt::format("{}..{}|auto", row.minimum, row.maximum);
    case OptionType::kBoolean:
      return "true|false";
    case OptionType::kBooleanOrAuto:
      return "true|false|auto";
    case OptionType::kChoice:
      return fmt::format("{}", fmt::join(row.choices, "|"));
    case OptionType::kShares:
      return "even|auto|N:N...";
  }
  return "";
}

std::string help_text(const OptionRow& row) {
  const std::string value = row.default_value.is_string() ? row.default_value.get<std::string>()
                                                          : to_text(row.default_value);
  std::string text(row.help);
  if (!value.empty() && value != "[]") text += fmt::format(" [{}]", value);
  return text + fmt::format(" ({})", environment_name(row));
}

}  // namespace

CommandLine::CommandLine(const std::string& name, std::string description, unsigned command)
    : app_(std::move(description), "lockstepd " + name), command_(command) {
  app_.set_version_flag("--version", fmt::format("lockstepd {}", kVersion));
  app_.get_formatter()->column_width(34);
  if (command == 0) return;
  app_.add_option("--config", config_,
                  "A JSON file (comments allowed) whose keys are these options' names "
                  "(LOCKSTEP_CONFIG)")
      ->type_name("FILE");
  for (const OptionRow& row : option_table()) {
    if ((row.commands & command) != 0) add_row(row);
  }
}

void CommandLine::add_row(const OptionRow& row) {
  const std::string name(row.name);
  app_.add_option_function<std::string>(
          "--" + name, [this, name](const std::string& text) { given_[name] = text; },
          help_text(row))
      ->type_name(type_name(row))
      // The last of an option counts: a script may put its own options before those of its caller.
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::expected<OptionValues, int> CommandLine::parse(const std::vector<std::string>& arguments) {
  try {
    // CLI11 takes them from the end.
    app_.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& ending) {  // --help, --version
    return std::unexpected(app_.exit(ending));
  } catch (const CLI::ParseError& error) {
    return std::unexpected(
        report(Error{ErrorKind::kInvalidInput, fmt::format("{} (see --help)", error.what())}));
  }
  if (command_ == 0) return OptionValues();
  auto values = resolve_options(sources());
  if (!values) return std::unexpected(report(values.error()));
  return std::move(*values);
}

OptionSources CommandLine::sources() const {
  OptionSources sources{.command_line = given_, .environment = process_environment(), .file = {}};
  if (!config_.empty()) sources.file = config_;
  return sources;
}

int report(const Error& error) {
  spdlog::default_logger()->flush();  // so that this is the last line
  std::cerr << "lockstepd: " << error.message << '\n';
  return exit_code(error);
}

void start_log(const Options& options) {
  auto logger = std::make_shared<spdlog::logger>("lockstepd",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.log_level));
  logger->set_formatter(make_log_formatter(LogFormat::kText));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

Options to_quiet_options(const OptionValues& values) {
  Options options = to_options(values);
  if (values.find("log-level")->second.source == OptionSource::kDefault) {
    options.log_level = "warn";
  }
  return options;
}

Result<void> check_model_given(const Options& options) {
  if (!options.engine.model.empty()) return {};
  return invalid_input(
      "no model was given: pass --model FILE, set LOCKSTEP_MODEL, or put \"model\" into the "
      "configuration file");
}

Result<void> check_engine(const Options& options) {
  EngineOptions engine = options.engine;
  auto hosts = choose_hosts(options.hosts, process_environment());
  if (!hosts) return std::unexpected(hosts.error());
  engine.hosts = std::move(*hosts);
  engine.hosts.is_checked_only = true;
  const auto opened = Engine::open(engine);
  if (!opened) return std::unexpected(opened.error());
  return {};
}

Result<std::unique_ptr<Engine>> open_engine(const Options& options,
                                            std::vector<KeptDescriptor> kept,
                                            const std::atomic<bool>* stop,
                                            std::function<void(const std::string&)> on_waiting) {
  if (auto given = check_model_given(options); !given) return std::unexpected(given.error());
  EngineOptions engine = options.engine;
  auto hosts = choose_hosts(options.hosts, process_environment());
  if (!hosts) return std::unexpected(hosts.error());
  engine.hosts = std::move(*hosts);
  engine.hosts.stop = stop;
  engine.hosts.on_waiting = std::move(on_waiting);
  return Engine::open(engine, std::move(kept));
}

Result<std::string> read_file(const std::filesystem::path& path, std::string_view option,
                              std::string_view remedy) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (file.is_open() && !file.bad()) return text;
  }
  return invalid_input("{}: {} cannot be read{}", option, path.string(), remedy);
}

Result<std::vector<uint32_t>> parse_counts(std::string_view text, std::string_view option,
                                           uint32_t maximum) {
  std::vector<uint32_t> counts;
  while (true) {
    const size_t end = std::min(text.find(','), text.size());
    uint32_t count = 0;
    const std::string_view number = text.substr(0, end);
    const auto [stopped, error] =
        std::from_chars(number.data(), number.data() + number.size(), count);
    if (error != std::errc() || stopped != number.data() + number.size() || count > maximum) {
      return invalid_input("{}: \"{}\" is not a list of integers from 0 to {}, separated by commas",
                           option, text, maximum);
    }
    counts.push_back(count);
    if (end == text.size()) return counts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace lockstep
