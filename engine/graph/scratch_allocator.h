// Places buffers that live for a part of a plan into one arena: released memory is used again.
#pragma once

#include <cstddef>
#include <map>

namespace lockstep {

class ScratchAllocator {
 public:
  // Offset of at least `bytes` of free memory, 64-byte aligned: the first that fits.
  size_t allocate(size_t bytes);
  // Gives back memory that allocate() returned.
  void release(size_t offset);

  size_t size_bytes() const { return size_bytes_; }  // of the arena so far

 private:
  std::map<size_t, size_t> free_;  // offset -> bytes, neighbours merged
  std::map<size_t, size_t> used_;
  size_t size_bytes_ = 0;
};

}  // namespace lockstep
