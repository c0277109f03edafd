// A file read past the page cache (O_DIRECT), so that a load leaves the cache as it was. Where the
// file system refuses that, it is read through the cache, and what the load brought in is dropped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/machine/disk_calls.h"
#include "engine/machine/file_reader.h"

namespace lockstep {

// The whole blocks around a range of a file: a direct read must ask for these.
struct BlockRange {
  uint64_t offset = 0;  // of the first block
  size_t lead = 0;      // bytes before the range
  size_t needed = 0;    // lead and range; beyond it the file may end
  size_t length = 0;    // of all blocks
};

class DirectFile {
 public:
  // The file that `reader` has open, whatever its path names by now. Never fails: what cannot be
  // read directly is read through the page cache. `reader` and `calls` must outlive this.
  DirectFile(const FileReader& reader, bool direct, DiskCalls& calls);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  const FileReader& reader() const { return reader_; }
  bool is_direct() const { return is_direct_.load(std::memory_order_relaxed); }
  // -1: none was to be had.
  int direct_descriptor() const { return direct_; }
  // Offsets, lengths and buffers of direct reads are multiples of it; a power of 2, 4096 at least.
  size_t block_bytes() const { return block_bytes_; }
  BlockRange blocks_around(uint64_t offset, size_t bytes) const;

  // From now on all reads go through the page cache: the file system has refused a direct one.
  // Several threads may call this.
  void give_up_direct() { is_direct_.store(false, std::memory_order_relaxed); }

  // Reads what is missing of a range into `buffer` (range.length bytes, block aligned), of which
  // `done` bytes are there; with `cached` through the page cache, whatever is_direct() says. Waits
  // for the disk. Fails with kMachineRefused, naming file, offset
  // and reason. Several threads may call this.
  Result<void> fill(const BlockRange& range, std::byte* buffer, size_t done, bool cached = false);

  // For reads through the page cache: whether a range was there before this load. Looks at
  // one page in its middle, for the first and the last are shared with neighbours; so it must be
  // asked before the range is read. "No" where the file system cannot say.
  bool was_cached(uint64_t offset, size_t bytes);
  // Whether copying a range from the page cache is likely to ask the disk for nothing: looks at
  // some pages over its whole length.
  bool is_cached(uint64_t offset, size_t bytes);
  // Takes a range that was not cached out of the page cache again.
  void drop(const BlockRange& range);
  // At the end: takes all of the file out, the headers that were read before the load among it, if
  // of a few pages far from each other most were not there when this was made.
  void drop_rest();

 private:
  int open_same_file();
  void learn_block_bytes();
  std::unexpected<Error> refused(uint64_t offset, size_t bytes, int64_t result) const;

  const FileReader& reader_;
  DiskCalls& calls_;
  int direct_ = -1;
  size_t block_bytes_ = 4096;
  std::atomic<bool> is_direct_ = false;
  bool stays_cached_ = false;  // most of it was in the page cache before
};

// The error of a read that failed: `error` is the positive number.
std::unexpected<Error> read_refused(const FileReader& reader, uint64_t offset, size_t bytes,
                                    int error);

}  // namespace lockstep
