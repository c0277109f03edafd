#include "engine/machine/file_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep {

FileReader::FileReader(std::filesystem::path path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<FileReader> FileReader::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return machine_refused("cannot open {}: {}", path.string(), std::strerror(errno));
  }
  return FileReader(path, descriptor);
}

Result<void> FileReader::read(uint64_t offset, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = pread(descriptor_, bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(offset + done));
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (count == 0) {
      return invalid_input("{} ends at byte {} where {} more were expected: it was cut off",
                           path_.string(), offset + done, bytes.size() - done);
    } else if (errno != EINTR) {
      return machine_refused("cannot read {} at byte {}: {}", path_.string(), offset + done,
                             std::strerror(errno));
    }
  }
  return {};
}

}  // namespace lockstep
