#include "engine/graph/activation_buffers.h"

namespace lockstep {
namespace {

constexpr size_t kCacheLine = 64;

}  // namespace

Stretch ActivationBuffers::allocate(ActivationForm form, Arena arena, size_t columns,
                                    size_t row_count) {
  size_t stride = activation_row_bytes(form, columns);
  // Rows that are not sent as they lie are an odd number of lines apart: side by side they then do
  // not fall into one set of a cache.
  if (form == ActivationForm::kF32 && arena == Arena::kScratch) stride |= kCacheLine;
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
  for (const auto& form : buffer.forms) {
    if (form) release(*form);
  }
  if (buffer.chunk_sums) release(*buffer.chunk_sums);
}

void ActivationBuffers::all_ranks_met() {
  for (const size_t offset : released_) exchange_.release(offset);
  released_.clear();
}

}  // namespace lockstep
