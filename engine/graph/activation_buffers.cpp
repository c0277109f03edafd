#include "engine/graph/activation_buffers.h"

#include <iterator>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

constexpr size_t kCacheLine = 64;

}  // namespace

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

size_t scratch_row_bytes(size_t columns) {
  return activation_row_bytes(ActivationForm::kF32, columns) | kCacheLine;
}

Stretch ActivationBuffers::allocate(ActivationForm form, Arena arena, size_t columns,
                                    size_t row_count) {
  const bool is_apart = form == ActivationForm::kF32 && arena == Arena::kScratch;
  const size_t stride = is_apart ? scratch_row_bytes(columns) : activation_row_bytes(form, columns);
  return {arena, allocator(arena).allocate(row_count * stride), stride};
}

void ActivationBuffers::release(const Stretch& stretch) {
  if (stretch.arena == Arena::kScratch) {
    scratch_.release(stretch.offset);
  } else {
    released_.push_back(stretch.offset);
  }
}

void ActivationBuffers::release(const Buffer& buffer) {
  if (buffer.plain) release(*buffer.plain);
  if (buffer.whole) release(*buffer.whole);
  for (const auto& form : buffer.forms) {
    if (form) release(*form);
  }
  if (buffer.chunk_sums) release(*buffer.chunk_sums);
}

void ActivationBuffers::all_ranks_met() {
  for (const size_t offset : released_) exchange_.release(offset);
  released_.clear();
}

Stretch StepAreas::take(ActivationForm form, Arena arena, size_t columns, size_t row_count) {
  taken_.push_back(activations_.allocate(form, arena, columns, row_count));
  return taken_.back();
}

void StepAreas::release() {
  for (const Stretch& area : taken_) activations_.release(area);
  taken_.clear();
}

}  // namespace lockstep
