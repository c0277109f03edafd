#include "engine/graph/activation_buffers.h"

namespace lockstep {

Stretch ActivationBuffers::allocate(ActivationForm form, Arena arena, size_t columns,
                                    size_t row_count) {
  const size_t stride = activation_row_bytes(form, columns);
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
