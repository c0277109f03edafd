// Any bytes as a configuration file, and lines of "name=value" as variables of the environment and
// as options of the command line. What is taken is printed as JSON; of a file alone, what is
// printed resolves to the same values again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "server/options/options.h"
#include "tests/fuzz/memory_file.h"

namespace lockstep {
namespace {

constexpr std::string_view kMark = "\n---\n";  // parts the file from the lines

Result<OptionValues> resolve(std::string_view file_text, OptionSources sources) {
  const MemoryFile file(std::as_bytes(std::span(file_text)));
  sources.file = file.path();
  return resolve_options(sources);
}

OptionSources read_lines(std::string_view lines) {
  OptionSources sources;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    const size_t equals = std::min(line.find('='), line.size());
    const std::string name(line.substr(0, equals));
    const std::string value(line.substr(std::min(line.size(), equals + 1)));
    if (name == "LOCKSTEP_CONFIG") continue;  // names a file of this machine
    if (name.starts_with("LOCKSTEP_")) {
      sources.environment.emplace_back(name, value);
    } else {
      sources.command_line[name] = value;
    }
  }
  return sources;
}

Json plain_values(const OptionValues& values) {
  const auto printed = parse_json(print_options(values));
  CHECK(printed && printed->size() == option_table().size(), "no configuration was printed");
  Json plain = Json::object();
  for (const auto& [name, entry] : printed->items()) plain[name] = entry["value"];
  return plain;
}

void read_configuration(std::string_view input) {
  const size_t end = std::min(input.find(kMark), input.size());
  const std::string_view file_text = input.substr(0, end);
  const std::string_view lines = input.substr(std::min(input.size(), end + kMark.size()));
  const auto values = resolve(file_text, read_lines(lines));
  if (!values) {
    CHECK(values.error().kind == ErrorKind::kInvalidInput, "{}", values.error().message);
    CHECK(!values.error().message.empty(), "an error that says nothing");
    return;
  }
  static_cast<void>(to_options(*values));
  const Json plain = plain_values(*values);
  if (!lines.empty()) return;  // there text need not be UTF-8
  const auto again = resolve(to_text(plain), {});
  CHECK(again.has_value(), "{}", again.error().message);
  CHECK(plain_values(*again) == plain, "{} became {}", to_text(plain),
        to_text(plain_values(*again)));
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::read_configuration({reinterpret_cast<const char*>(data), size});
  return 0;
}
