// A cache of random sequences as a GPU keeps it, filled by its own kernel, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_heads.h"
#include "tests/engine/kernels/paged_sequence.h"

namespace lockstep {

// Memory aligned as a device's is, every bit set where nothing has been written.
class GpuBytes {
 public:
  explicit GpuBytes(size_t bytes);
  std::byte* data() const { return bytes_; }

 private:
  std::vector<std::byte> memory_;
  std::byte* bytes_;
};

// A batch in memory of its own.
class GpuTestBatch {
 public:
  explicit GpuTestBatch(const GpuBatchLimits& limits);
  GpuBatchWriter& writer() { return writer_; }
  const GpuBatch& batch() const { return writer_.batch(); }

 private:
  GpuBytes block_;
  GpuBatchWriter writer_;
};

class GpuCache {
 public:
  // A cache of one sequence of `contexts[i]` tokens for each i: their pages lie among one
  // another's, in no order.
  GpuCache(KvFormat format, HeadDimensions dimensions, unsigned kv_head_count,
           const std::vector<size_t>& contexts, uint32_t seed);

  const GpuKvLayer& layer() const { return layer_; }
  unsigned kv_head_count() const { return kv_head_count_; }
  size_t sequence_count() const { return contexts_.size(); }
  size_t context(size_t sequence) const { return contexts_[sequence]; }
  const std::vector<uint32_t>& pages(size_t sequence) const { return pages_[sequence]; }
  // The stored pages of a KV head.
  const PagedSequence& stored(size_t sequence, size_t kv_head) const;
  GpuBatchLimits limits() const;

 private:
  void fill(uint32_t seed);

  std::vector<size_t> contexts_;
  unsigned kv_head_count_;
  std::vector<std::vector<uint32_t>> pages_;
  std::vector<std::unique_ptr<PagedSequence>> stored_;
  std::unique_ptr<GpuBytes> blocks_;
  GpuKvLayer layer_;
};

}  // namespace lockstep
