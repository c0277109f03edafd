#include "engine/machine/kept_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "engine/base/digest.h"

namespace lockstep {
namespace {

constexpr int kReadOnlySeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SEAL;

constexpr uint64_t kSampleCount = 64;
constexpr size_t kSampleBytes = 4096;

std::unexpected<Error> refused(std::string_view call) {
  return machine_refused("{} of a memfd: {}", call, std::strerror(errno));
}

// Whole or not at all. False with errno set; 0 for an end that comes too early.
bool read_whole(int descriptor, uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = 0;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return true;
}

}  // namespace

std::optional<MemfdFacts> examine_memfd(int descriptor) {
  // Files on disks have no seals.
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  struct stat status {};
  struct statfs system {};
  if (seals < 0 || ::fstat(descriptor, &status) != 0 || ::fstatfs(descriptor, &system) != 0) {
    return std::nullopt;
  }
  MemfdFacts facts;
  facts.inode = status.st_ino;
  facts.bytes = static_cast<uint64_t>(status.st_size);
  if (system.f_type == HUGETLBFS_MAGIC) {
    facts.huge_page_bytes = static_cast<uint64_t>(system.f_bsize);
  }
  facts.sealed = (seals & kReadOnlySeals) == kReadOnlySeals;
  return facts;
}

Result<std::string> sample_digest(int descriptor, uint64_t bytes) {
  Digest digest;
  std::array<std::byte, kSampleBytes> sample;
  const uint64_t last = bytes - std::min<uint64_t>(bytes, kSampleBytes);
  for (uint64_t index = 0; index < kSampleCount; ++index) {
    const uint64_t offset = last / (kSampleCount - 1) * index;
    const std::span slice(sample.data(), std::min<uint64_t>(kSampleBytes, bytes - offset));
    if (!read_whole(descriptor, offset, slice)) return refused("reading");
    digest.add(slice);
  }
  return digest.finish();
}

void free_memfd(int descriptor) {
  // Fails for one that is sealed against it, whose memory goes with its last descriptor.
  static_cast<void>(::ftruncate(descriptor, 0) == 0);
}

Result<Descriptor> make_sealed_text(const char* name, std::string_view text) {
  Descriptor file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) return refused("making");
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t count = ::write(file.number(), rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return refused("writing");
    rest.remove_prefix(static_cast<size_t>(count));
  }
  if (::fcntl(file.number(), F_ADD_SEALS, kReadOnlySeals | F_SEAL_SHRINK) != 0) {
    return refused("sealing");
  }
  return file;
}

Result<std::string> read_sealed_text(int descriptor, uint64_t bytes_max) {
  const auto facts = examine_memfd(descriptor);
  if (!facts || !facts->sealed) return machine_refused("it is not a sealed memfd");
  if (facts->bytes > bytes_max) {
    return machine_refused("it holds {} bytes, {} at most are read", facts->bytes, bytes_max);
  }
  std::string text(facts->bytes, '\0');
  if (!read_whole(descriptor, 0, std::as_writable_bytes(std::span(text))))
    return refused("reading");
  return text;
}

}  // namespace lockstep
