#include "engine/machine/direct_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

// A read that was not to be had at once gets this many tries, this far apart: a second in all.
constexpr int kTriesMax = 1000;
constexpr auto kPause = std::chrono::milliseconds(1);

// Places of a file that are looked at to know whether most of it is in the page cache.
constexpr uint64_t kCacheProbes = 15;

// The places of a range of some MiB that are looked at to know whether all of it is there. The
// kernel brings in and takes out pages by the hundred, so that holes between them are rare.
constexpr uint64_t kStretchProbes = 8;

bool is_same_file(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

// The blocks that the kernel has read from disks for this thread, in its own units; 0 where it does
// not count.
int64_t blocks_read_by_thread() {
  rusage usage{};
  return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_inblock : 0;
}

}  // namespace

std::unexpected<Error> read_refused(const FileReader& reader, uint64_t offset, size_t bytes,
                                    int error) {
  return machine_refused("{}: reading {} bytes at byte {} failed: {}", reader.path().string(),
                         bytes, offset, std::strerror(error));
}

DirectFile::DirectFile(const FileReader& reader, bool direct, DiskCalls& calls)
    : reader_(reader), calls_(calls) {
  // Reads through the page cache are to bring in what was asked for and no more.
  ::posix_fadvise(reader_.descriptor(), 0, 0, POSIX_FADV_RANDOM);
  uint64_t cached = 0;
  for (uint64_t probe = 1; probe <= kCacheProbes; ++probe) {
    if (was_cached(reader_.size_bytes() / (kCacheProbes + 1) * probe, 1)) ++cached;
  }
  stays_cached_ = cached > kCacheProbes / 2;
  if (!direct) return;
  direct_ = open_same_file();
  is_direct_ = direct_ >= 0;
  if (is_direct_) learn_block_bytes();
}

DirectFile::~DirectFile() {
  if (direct_ >= 0) ::close(direct_);
}

// By the descriptor, which names this very file; by the path where there is no /proc.
int DirectFile::open_same_file() {
  const std::string names[] = {"/proc/self/fd/" + std::to_string(reader_.descriptor()),
                               reader_.path().string()};
  for (const std::string& name : names) {
    const int descriptor = calls_.open_direct(name.c_str());
    if (descriptor < 0) continue;
    if (is_same_file(descriptor, reader_.descriptor())) return descriptor;
    ::close(descriptor);
  }
  return -1;
}

void DirectFile::learn_block_bytes() {
  struct statx status {};
  if (::statx(direct_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return;
  const size_t wanted = std::max(status.stx_dio_offset_align, status.stx_dio_mem_align);
  if (status.stx_dio_offset_align == 0 || !std::has_single_bit(wanted)) {
    is_direct_ = false;
    return;
  }
  block_bytes_ = std::max(block_bytes_, wanted);
}

BlockRange DirectFile::blocks_around(uint64_t offset, size_t bytes) const {
  BlockRange range;
  range.offset = offset / block_bytes_ * block_bytes_;
  range.lead = offset - range.offset;
  range.needed = range.lead + bytes;
  range.length = round_up(range.needed, block_bytes_);
  return range;
}

Result<void> DirectFile::fill(const BlockRange& range, std::byte* buffer, size_t done,
                              bool cached) {
  bool direct = is_direct() && !cached;
  int tries = 0;
  while (done < range.needed) {
    // A direct read that was cut within a block begins again at that block. What it does not bring
    // is not there any more: the buffer is the kernel's until it ends.
    const size_t had = done;
    const size_t from = direct ? done / block_bytes_ * block_bytes_ : done;
    const std::span<std::byte> rest(buffer + from, (direct ? range.length : range.needed) - from);
    const uint64_t offset = range.offset + from;
    const int64_t result = calls_.ended(
        offset, rest, calls_.pread(direct ? direct_ : reader_.descriptor(), rest, offset));
    done = from + static_cast<size_t>(std::max<int64_t>(result, 0));
    if (done > had) continue;
    if ((result == -EINTR || result == -EAGAIN) && ++tries < kTriesMax) {
      if (result == -EAGAIN) std::this_thread::sleep_for(kPause);
    } else if (direct && (result == -EINVAL || result == -EOPNOTSUPP)) {
      give_up_direct();
      direct = false;
    } else if (result < 0) {
      return read_refused(reader_, offset, rest.size(), static_cast<int>(-result));
    } else if (direct) {
      direct = false;  // less than what was there: the page cache's answer counts
    } else {
      return machine_refused("{}: ended at byte {} though it had {} bytes when it was opened",
                             reader_.path().string(), offset, reader_.size_bytes());
    }
  }
  return {};
}

// A read that is not to wait still asks the disk for the page, and finds it if the disk (a virtual
// one whose host was faster than this thread) has answered meanwhile: only a page that this thread
// has not asked for was there before.
bool DirectFile::was_cached(uint64_t offset, size_t bytes) {
  std::byte byte{};
  const iovec place = {&byte, 1};
  const auto middle = static_cast<off_t>(offset + bytes / 2);
  const int64_t before = blocks_read_by_thread();
  return ::preadv2(reader_.descriptor(), &place, 1, middle, RWF_NOWAIT) == 1 &&
         blocks_read_by_thread() == before;
}

bool DirectFile::is_cached(uint64_t offset, size_t bytes) {
  for (uint64_t probe = 0; probe <= kStretchProbes; ++probe) {
    const uint64_t ahead = (bytes - 1) * probe / kStretchProbes;
    if (!was_cached(offset + ahead, 1)) return false;
  }
  return true;
}

void DirectFile::drop(const BlockRange& range) {
  ::posix_fadvise(reader_.descriptor(), static_cast<off_t>(range.offset),
                  static_cast<off_t>(range.length), POSIX_FADV_DONTNEED);
}

void DirectFile::drop_rest() {
  if (!stays_cached_) ::posix_fadvise(reader_.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace lockstep
