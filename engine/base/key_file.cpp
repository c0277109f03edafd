#include "engine/base/key_file.h"

#include <sys/stat.h>

#include "engine/base/log.h"

namespace lockstep {

Result<void> check_key_file(const std::string& file, const char* option) {
  struct stat status {};
  if (stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return invalid_input("cannot read {} given as {}: it is not there or no file", file, option);
  }
  const mode_t mode = status.st_mode & 07777;
  if ((mode & (S_IWGRP | S_IWOTH)) != 0) {
    return invalid_input(
        "{} given as {} can be written by {} (mode {:04o}), who could put keys of their own there: "
        "chmod go-w {}",
        file, option, (mode & S_IWOTH) != 0 ? "everybody" : "its group", mode, file);
  }
  if ((mode & S_IROTH) != 0) {
    spdlog::warn("{} given as {} can be read by everybody (mode {:04o}): chmod o-r {}", file,
                 option, mode, file);
  }
  return {};
}

}  // namespace lockstep
