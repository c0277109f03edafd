#include "engine/graph/scratch_allocator.h"

#include <iterator>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"

namespace lockstep {

size_t ScratchAllocator::allocate(size_t bytes) {
  bytes = round_up<size_t>(bytes == 0 ? 1 : bytes, 64);
  for (auto stretch = free_.begin(); stretch != free_.end(); ++stretch) {
    const auto [offset, size] = *stretch;
    if (size < bytes) continue;
    free_.erase(stretch);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    used_.emplace(offset, bytes);
    return offset;
  }
  const size_t offset = size_bytes_;
  used_.emplace(offset, bytes);
  size_bytes_ += bytes;
  return offset;
}

void ScratchAllocator::release(size_t offset) {
  const auto used = used_.find(offset);
  CHECK(used != used_.end(), "no stretch at offset {} is in use", offset);
  size_t bytes = used->second;
  used_.erase(used);
  auto next = free_.upper_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

}  // namespace lockstep
