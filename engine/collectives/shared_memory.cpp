#include "engine/collectives/shared_memory.h"

#include <cstring>

namespace lockstep {
namespace {

template <typename T>
T* at_distance(T* own, std::ptrdiff_t distance) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(own) + static_cast<uintptr_t>(distance));
}

}  // namespace

size_t push_rows(const Peers& peers, const void* own, size_t stride_bytes, size_t row_count,
                 size_t row_bytes) {
  const auto* from = static_cast<const std::byte*>(own);
  for (size_t row = 0; row < row_count; ++row, from += stride_bytes) {
    for (size_t rank = 0; rank < peers.distances.size(); ++rank) {
      if (rank == peers.rank) continue;
      std::memcpy(const_cast<std::byte*>(at_distance(from, peers.distances[rank])), from,
                  row_bytes);
    }
  }
  return row_count * row_bytes * (peers.distances.size() - 1);
}

void all_reduce(const AllReduce& sum, const Peers& peers, Barrier&, size_t worker,
                size_t worker_count) {
  const size_t total = sum.row_count * sum.column_count;
  const size_t end = total * (worker + 1) / worker_count;
  for (size_t index = total * worker / worker_count; index < end; ++index) {
    const size_t row = index / sum.column_count;
    const size_t column = index % sum.column_count;
    const float* partial = sum.partial + row * sum.partial_stride + column;
    float added = 0;
    for (const size_t rank : sum.contributors)
      added += *at_distance(partial, peers.distances[rank]);
    sum.output[row * sum.output_stride + column] += added;
  }
}

}  // namespace lockstep
