#include "engine/machine/folder_names.h"

#include <dirent.h>

#include <memory>
#include <string_view>

namespace lockstep {

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

}  // namespace lockstep
