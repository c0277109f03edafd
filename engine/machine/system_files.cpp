#include "engine/machine/system_files.h"

#include <dirent.h>

#include <charconv>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "engine/base/ascii.h"

namespace lockstep {
namespace {

constexpr int kLargestNumber = 65535;

// Takes a number from the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kLargestNumber) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

std::vector<std::string> folder_names(const std::filesystem::path& folder) {
  struct Close {
    void operator()(DIR* opened) const { ::closedir(opened); }
  };
  const std::unique_ptr<DIR, Close> opened(::opendir(folder.c_str()));
  std::vector<std::string> names;
  if (opened == nullptr) return names;
  while (const dirent* entry = ::readdir(opened.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

std::map<std::string, uint64_t, std::less<>> read_memory_info(
    const std::filesystem::path& file_path) {
  std::map<std::string, uint64_t, std::less<>> info;
  std::ifstream file(file_path);
  std::string word;
  std::string key;
  while (file >> word) {
    uint64_t number = 0;
    if (word.ends_with(':')) {
      word.pop_back();
      key = word;
      if (file >> number) info[key] = number * 1024;
    }
  }
  return info;
}

std::optional<std::vector<int>> parse_number_list(std::string_view text) {
  std::vector<int> numbers;
  text = trimmed(text, " \t\r\n");
  while (!text.empty()) {
    const auto first = take_number(text);
    if (!first) return std::nullopt;
    auto last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
      if (!last || *last < *first) return std::nullopt;
    }
    for (int number = *first; number <= *last; ++number) numbers.push_back(number);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return numbers;
}

std::optional<std::vector<int>> read_number_list(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string line;
  std::getline(file, line);
  return parse_number_list(line);
}

std::string write_number_list(std::span<const int> numbers) {
  std::string list;
  for (size_t first = 0; first < numbers.size();) {
    size_t end = first + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (!list.empty()) list += ',';
    list += std::to_string(numbers[first]);
    if (end - first > 1) list += '-' + std::to_string(numbers[end - 1]);
    first = end;
  }
  return list;
}

}  // namespace lockstep
