#include "engine/model/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/check.h"

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

Result<uint64_t> usable_size(const std::filesystem::path& path, int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    return machine_refused("{}: cannot be examined: {}", path.string(), std::strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    return invalid_input("{}: is a directory; name the GGUF file in it", path.string());
  }
  if (!S_ISREG(status.st_mode)) {
    return invalid_input("{}: is not a regular file; a model is read at many places of a file",
                         path.string());
  }
  if (status.st_size == 0) return invalid_input("{}: the file is empty", path.string());
  return static_cast<uint64_t>(status.st_size);
}

}  // namespace

Result<std::unique_ptr<FileSource>> FileSource::open(const std::filesystem::path& path) {
  if (path.empty()) return invalid_input("the path of the model file is empty");
  if (path.native().find('\0') != std::string::npos) {
    return invalid_input("{}: a path cannot hold a zero byte", path.c_str());
  }
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return refused_open(path, errno);
  const Result<uint64_t> size = usable_size(path, descriptor);
  if (!size) {
    ::close(descriptor);
    return std::unexpected(size.error());
  }
  return std::unique_ptr<FileSource>(new FileSource(path.string(), *size, descriptor));
}

FileSource::~FileSource() {
  ::close(descriptor_);
}

Result<void> FileSource::read(uint64_t offset, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(descriptor_, bytes.data() + done, bytes.size() - done,
                                  static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return machine_refused("{}: reading at byte {} failed: {}", name(), offset + done,
                             std::strerror(errno));
    }
    if (count == 0) {
      return machine_refused("{}: ended at byte {} though it had {} bytes when it was opened",
                             name(), offset + done, size_bytes());
    }
    done += static_cast<size_t>(count);
  }
  return {};
}

Result<void> MemorySource::read(uint64_t offset, std::span<std::byte> bytes) const {
  CHECK(offset <= bytes_.size() && bytes.size() <= bytes_.size() - offset,
        "{} bytes at {} of {} bytes in memory", bytes.size(), offset, bytes_.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  return {};
}

}  // namespace lockstep
