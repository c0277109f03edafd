// lockstepd inspect: what a model file says.
#include <algorithm>
#include <iostream>
#include <vector>

#include "server/commands/command_line.h"
#include "server/commands/commands.h"

namespace lockstep {
namespace {

std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : to_text(value);
}

// One line per member: name, padded, and value.
void print_members(const Json& object) {
  size_t width = 0;
  for (const auto& [name, value] : object.items()) width = std::max(width, name.size());
  for (const auto& [name, value] : object.items()) {
    std::cout << fmt::format("  {:{}}  {}\n", name, width, plain(value));
  }
}

// One line per element, in columns that are the members of the first.
void print_table(const Json& rows) {
  std::vector<std::string> columns;
  std::vector<size_t> widths;
  for (const auto& [name, value] : rows.front().items()) {
    size_t width = name.size();
    for (const Json& row : rows) {
      if (row.contains(name)) width = std::max(width, plain(row[name]).size());
    }
    columns.push_back(name);
    widths.push_back(width);
  }
  const auto print_line = [&](auto cell) {
    std::string line;
    for (size_t index = 0; index < columns.size(); ++index) {
      line += fmt::format("  {:{}}", cell(columns[index]), widths[index]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  };
  print_line([](const std::string& name) { return name; });
  for (const Json& row : rows) {
    print_line([&](const std::string& name) {
      return row.contains(name) ? plain(row[name]) : std::string();
    });
  }
}

void print_description(const Json& description) {
  for (const auto& [name, value] : description.items()) {
    const bool table = value.is_array() && !value.empty() && value.front().is_object();
    if (!table && !value.is_object()) {
      std::cout << fmt::format("{}: {}\n", name, plain(value));
      continue;
    }
    std::cout << fmt::format("{} ({}):\n", name, value.size());
    table ? print_table(value) : print_members(value);
  }
}

void print_architectures(bool json) {
  const auto names = architecture_names();
  if (json) {
    std::cout << to_indented_text(Json(names)) << '\n';
    return;
  }
  for (const std::string_view name : names) std::cout << name << '\n';
}

}  // namespace

int run_inspect(const std::vector<std::string>& arguments) {
  CommandLine line(
      "inspect", "Shows the metadata and the tensors of a model file, or which files are read.", 0);
  std::string model;
  bool lists_architectures = false;
  bool json = false;
  auto* const file = line.app().add_option("--model", model, "The GGUF file")->type_name("FILE");
  line.app()
      .add_flag("--architectures", lists_architectures,
                "The values of general.architecture that are read")
      ->excludes(file);
  line.app().add_flag("--json", json, "As JSON");
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  if (lists_architectures) {
    print_architectures(json);
    return 0;
  }
  if (model.empty()) {
    return report(Error{ErrorKind::kInvalidInput, "--model or --architectures is required"});
  }
  Options options;
  options.log_level = "warn";
  start_log(options);
  const auto description = describe_model_file(model);
  if (!description) return report(description.error());
  if (json) {
    std::cout << to_indented_text(*description) << '\n';
  } else {
    print_description(*description);
  }
  return 0;
}

}  // namespace lockstep
