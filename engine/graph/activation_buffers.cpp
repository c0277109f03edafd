#include "engine/graph/activation_buffers.h"

#include "engine/kernels/activation.h"

namespace lockstep {

Stretch ActivationBuffers::allocate_f32(Arena arena, size_t columns, size_t row_count) {
  const size_t stride = activation_stride(columns) * sizeof(float);
  return {arena, allocator(arena).allocate(row_count * stride), stride};
}

Stretch ActivationBuffers::allocate_q8(Arena arena, size_t columns, size_t row_count) {
  const size_t stride = activation_row_bytes(ActivationForm::kQ8, columns);
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
  release(buffer.f32);
  if (buffer.q8) release(*buffer.q8);
}

void ActivationBuffers::all_ranks_met() {
  for (const size_t offset : released_) exchange_.release(offset);
  released_.clear();
}

}  // namespace lockstep
