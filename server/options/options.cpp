#include "server/options/options.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string_view>

#include "server/http/networks.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "LOCKSTEP_";
constexpr std::string_view kConfigVariable = "LOCKSTEP_CONFIG";
constexpr size_t kConfigBytesMax = 1 << 20;  // a configuration is a few KiB

std::string_view source_name(OptionSource source) {
  switch (source) {
    case OptionSource::kDefault:
      return "default";
    case OptionSource::kFile:
      return "file";
    case OptionSource::kEnvironment:
      return "environment";
    case OptionSource::kCommandLine:
      return "command line";
  }
  return "";
}

Result<std::string> read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return invalid_input("cannot read the configuration file {}: check the path given as --config",
                         path.string());
  }
  std::string text;
  text.resize(kConfigBytesMax + 1);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || (text.empty() && !file.eof())) {
    return invalid_input("cannot read the configuration file {}", path.string());
  }
  if (text.size() > kConfigBytesMax) {
    return invalid_input("the configuration file {} is larger than {} bytes", path.string(),
                         kConfigBytesMax);
  }
  return text;
}

Result<void> add_file(const std::filesystem::path& path, OptionValues& values) {
  const auto text = read_text(path);
  if (!text) return std::unexpected(text.error());
  const auto document = parse_json(*text, {.depth = 8, .values = 10000, .comments = true});
  if (!document) {
    return invalid_input("the configuration file {}: {}", path.string(), document.error().message);
  }
  if (!document->is_object()) {
    return invalid_input("the configuration file {} holds {}, not an object of options",
                         path.string(), kind_name(*document));
  }
  for (const auto& [key, given] : document->items()) {
    const OptionRow* row = find_option(key);
    if (row == nullptr) {
      return invalid_input("unknown option \"{}\" in {}: see --help for those there are", key,
                           path.string());
    }
    auto value = option_from_json(*row, given, fmt::format("\"{}\" in {}", key, path.string()));
    if (!value) return std::unexpected(value.error());
    values[std::string(row->name)] = {std::move(*value), OptionSource::kFile};
  }
  return {};
}

Result<void> add_environment(const OptionSources& sources, OptionValues& values) {
  for (const auto& [name, text] : sources.environment) {
    if (!name.starts_with(kPrefix) || name == kConfigVariable) continue;
    const OptionRow* row = nullptr;
    for (const OptionRow& candidate : option_table()) {
      if (environment_name(candidate) == name) row = &candidate;
    }
    if (row == nullptr) {
      return invalid_input("unknown environment variable {}: see --help for the options there are",
                           name);
    }
    auto value = option_from_text(*row, text, name);
    if (!value) return std::unexpected(value.error());
    values[std::string(row->name)] = {std::move(*value), OptionSource::kEnvironment};
  }
  return {};
}

std::optional<std::filesystem::path> configuration_file(const OptionSources& sources) {
  if (sources.file) return sources.file;
  for (const auto& [name, text] : sources.environment) {
    if (name == kConfigVariable) return text;
  }
  return std::nullopt;
}

}  // namespace

Result<OptionValues> resolve_options(const OptionSources& sources) {
  OptionValues values;
  for (const OptionRow& row : option_table()) {
    values[std::string(row.name)] = {row.default_value, OptionSource::kDefault};
  }
  if (const auto path = configuration_file(sources)) {
    if (auto added = add_file(*path, values); !added) return std::unexpected(added.error());
  }
  if (auto added = add_environment(sources, values); !added) return std::unexpected(added.error());
  for (const auto& [name, text] : sources.command_line) {
    const OptionRow* row = find_option(name);
    if (row == nullptr) return invalid_input("unknown option --{}", name);
    auto value = option_from_text(*row, text, "--" + name);
    if (!value) return std::unexpected(value.error());
    values[name] = {std::move(*value), OptionSource::kCommandLine};
  }
  return values;
}

Options to_options(const OptionValues& values) {
  Options options;
  for (const OptionRow& row : option_table())
    row.apply(values.find(row.name)->second.value, options);
  if (options.http.limits.threads == 0) {  // auto
    constexpr size_t kToRefuse = 64;
    options.http.limits.threads = threads_for_one(options.engine.sequence_count +
                                                  options.engine.waiting_requests + kToRefuse);
  }
  return options;
}

std::string print_options(const OptionValues& values) {
  Json printed = Json::object();
  for (const OptionRow& row : option_table()) {
    const OptionValue& value = values.find(row.name)->second;
    printed[std::string(row.name)] = {{"value", value.value},
                                      {"source", source_name(value.source)}};
  }
  return to_indented_text(printed);
}

std::vector<std::pair<std::string, std::string>> process_environment() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == text.npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

}  // namespace lockstep
