#include "engine/machine/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep {
namespace {

std::unexpected<Error> refused_open(const std::filesystem::path& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return invalid_input("{}: there is no such file; check the path", path.string());
    case ENAMETOOLONG:
    case ELOOP:
      return invalid_input("{}: not a usable path: {}", path.string(), std::strerror(error));
    case EACCES:
      return machine_refused("{}: may not be read by this user: {}; change its permissions",
                             path.string(), std::strerror(error));
    default:
      return machine_refused("{}: cannot be opened: {}", path.string(), std::strerror(error));
  }
}

int64_t modification_ns(const struct stat& status) {
  return status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

}  // namespace

Result<FileReader> FileReader::open(const std::filesystem::path& path) {
  if (path.empty()) return invalid_input("the path of the model file is empty");
  if (path.native().find('\0') != std::string::npos) {
    return invalid_input("{}: a path cannot hold a zero byte", path.c_str());
  }
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return refused_open(path, errno);
  FileReader reader(path, descriptor);
  if (const auto examined = reader.examine(); !examined) return std::unexpected(examined.error());
  return reader;
}

Result<void> FileReader::examine() {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    return machine_refused("{}: cannot be examined: {}", path_.string(), std::strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    return invalid_input("{}: is a directory; name the GGUF file in it", path_.string());
  }
  if (!S_ISREG(status.st_mode)) {
    return invalid_input("{}: is not a regular file; a model is read at many places of a file",
                         path_.string());
  }
  if (status.st_size == 0) return invalid_input("{}: the file is empty", path_.string());
  size_bytes_ = static_cast<uint64_t>(status.st_size);
  changed_ns_ = modification_ns(status);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  return {};
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_),
      changed_ns_(other.changed_ns_),
      device_(other.device_),
      inode_(other.inode_) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(changed_ns_, other.changed_ns_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<void> FileReader::read(uint64_t offset, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(descriptor_, bytes.data() + done, bytes.size() - done,
                                  static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return machine_refused("{}: reading at byte {} failed: {}", path_.string(), offset + done,
                             std::strerror(errno));
    }
    if (count == 0) {
      return machine_refused("{}: ended at byte {} though it had {} bytes when it was opened",
                             path_.string(), offset + done, size_bytes_);
    }
    done += static_cast<size_t>(count);
  }
  return {};
}

Result<void> FileReader::check_unchanged() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    return machine_refused("{}: cannot be examined: {}", path_.string(), std::strerror(errno));
  }
  if (static_cast<uint64_t>(status.st_size) != size_bytes_ ||
      modification_ns(status) != changed_ns_) {
    return machine_refused(
        "{}: was written to while it was read; start again when the file is complete",
        path_.string());
  }
  if (::stat(path_.c_str(), &status) != 0) {
    return machine_refused(
        "{}: was removed or renamed while it was read ({}); start again when it is in place",
        path_.string(), std::strerror(errno));
  }
  if (status.st_dev != device_ || status.st_ino != inode_) {
    return machine_refused("{}: was replaced by another file while it was read; start again",
                           path_.string());
  }
  return {};
}

}  // namespace lockstep
