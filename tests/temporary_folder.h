// A folder for a test's files. Tests run side by side, each in a process of its own: a name that
// all of them know would be one file for all.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::test {

// An empty folder that goes away with this object.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::test
