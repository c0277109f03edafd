#include "engine/model/gpu_weight_sink.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/kernels/gpu_tile.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

// Extents are cut at panels of the one for ranks of the other.
static_assert(kGpuPanelRows == kPanelRows);

// A GPU that has not copied a few megabytes by then does not answer. Not measured.
constexpr std::chrono::seconds kCopyDeadline{10};

Result<void> copy_now(GpuStream& stream, void* to, const void* from, size_t bytes) {
  if (auto copied = stream.copy(to, from, bytes); !copied) return copied;
  return stream.wait(kCopyDeadline);
}

}  // namespace

size_t GpuWeightSink::take_lane() {
  const MutexLock lock(mutex_);
  for (;;) {
    // The one that was not used last packs the least.
    for (size_t turn = 0; turn < kLaneCount; ++turn) {
      const size_t lane = (next_lane_ + turn) % kLaneCount;
      if (std::exchange(is_taken_[lane], true)) continue;
      next_lane_ = lane + 1;
      return lane;
    }
    lane_is_free_.wait(mutex_);
  }
}

void GpuWeightSink::give_back(size_t lane) {
  {
    const MutexLock lock(mutex_);
    is_taken_[lane] = false;
  }
  lane_is_free_.notify_one();
}

Result<void> GpuWeightSink::begin(size_t extent_bytes_max) {
  auto bounce = NodeMemory::allocate({.bytes = kLaneCount * bounce_bytes_,
                                      .what = "a buffer to copy weights to a GPU through",
                                      .node = node_});
  if (!bounce) return std::unexpected(bounce.error());
  bounce_ = std::move(*bounce);
  auto pinned = device_.pin({bounce_.data(), bounce_.size_bytes()});
  if (!pinned) return std::unexpected(pinned.error());
  pinned_bounce_ = std::move(*pinned);
  for (size_t index = 0; index < kLaneCount; ++index) {
    Lane& lane = lanes_[index];
    lane.bounce = bounce_.data() + index * bounce_bytes_;
    auto staging = device_.allocate(extent_bytes_max, "weights that are to be packed");
    if (!staging) return std::unexpected(staging.error());
    lane.staging = std::move(*staging);
    auto stream = device_.make_stream();
    if (!stream) return std::unexpected(stream.error());
    lane.stream = std::move(*stream);
  }
  return {};
}

std::optional<Error> GpuWeightSink::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

Result<void> GpuWeightSink::take(const ReadExtent& read) {
  Turn turn(*this);
  if (auto failed = failure()) return std::unexpected(std::move(*failed));
  auto taken = take(turn.lane(), read);
  if (!taken) {
    const MutexLock lock(mutex_);
    if (!failure_) failure_ = taken.error();
  }
  return taken;
}

Result<void> GpuWeightSink::take(Lane& lane, const ReadExtent& read) {
  if (auto used = device_.use(); !used) return used;
  return read.weight.is_matrix ? take_matrix(lane, read) : take_vector(lane, read);
}

// Whole rows, whatever columns of them are the slice's: then it is one copy.
Result<void> GpuWeightSink::take_matrix(Lane& lane, const ReadExtent& read) const {
  const auto& [weight, slice, to, extent, bytes, pinned] = read;
  std::byte* const staging = lane.staging.data();
  const size_t step = pinned ? extent.bytes : bounce_bytes_;
  for (size_t done = 0; done < extent.bytes; done += step) {
    const size_t count = std::min(step, extent.bytes - done);
    if (!pinned) std::memcpy(lane.bounce, bytes + done, count);
    auto copied =
        copy_now(*lane.stream, staging + done, pinned ? bytes + done : lane.bounce, count);
    if (!copied) return copied;
  }
  const FormatTraits& format = traits(weight.format);
  // Not waited for: what is next in this lane comes behind it on the stream.
  pack_rows_(lane.stream->handle(),
             {.format = weight.format,
              .rows = slice.row_end - slice.row_begin,
              .columns = slice.column_end - slice.column_begin,
              .source = staging + slice.column_begin / format.block_elements * format.block_bytes,
              .stride_bytes = row_bytes(weight.format, weight.columns),
              .row_begin = extent.begin - slice.row_begin,
              .row_count = extent.end - extent.begin,
              .planes = to});
  return {};
}

Result<void> GpuWeightSink::take_vector(Lane& lane, const ReadExtent& read) const {
  const FormatTraits& format = traits(read.weight.format);
  const size_t blocks = read.extent.end - read.extent.begin;
  const size_t step = bounce_bytes_ / (format.block_elements * sizeof(float));
  auto* const floats = reinterpret_cast<float*>(lane.bounce);
  std::byte* to = read.to + first_float(read) * sizeof(float);
  for (size_t done = 0; done < blocks; done += step) {
    const size_t count = std::min(step, blocks - done) * format.block_elements;
    format.dequantize(read.bytes + done * format.block_bytes, count, floats);
    auto copied = copy_now(*lane.stream, to, floats, count * sizeof(float));
    if (!copied) return copied;
    to += count * sizeof(float);
  }
  return {};
}

Result<void> GpuWeightSink::finish() {
  Result<void> finished;
  if (auto failed = failure()) finished = std::unexpected(std::move(*failed));
  for (Lane& lane : lanes_) {
    if (lane.stream != nullptr && finished) finished = lane.stream->wait(kCopyDeadline);
    lane.stream.reset();
    lane.staging = GpuMemory();
  }
  pinned_bounce_ = GpuMemory();
  bounce_ = NodeMemory();
  const MutexLock lock(mutex_);
  failure_.reset();
  return finished;
}

}  // namespace lockstep
