#include "engine/machine/memory_info.h"

#include <fstream>

namespace lockstep {

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

}  // namespace lockstep
