#include "engine/collectives/gpu_nccl_sum.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "engine/base/check.h"
#include "engine/collectives/gpu_sum_launch.h"

namespace lockstep {
namespace {

// The part of a message that a rank adds up. Parts begin where units do.
struct Part {
  size_t begin = 0;
  size_t count = 0;
};

size_t part_floats(size_t rank_count, size_t floats) {
  const size_t even = (floats + rank_count - 1) / rank_count;
  return (even + kGpuUnitFloats - 1) / kGpuUnitFloats * kGpuUnitFloats;
}

Part part_of(size_t rank, size_t rank_count, size_t floats) {
  const size_t begin = std::min(rank * part_floats(rank_count, floats), floats);
  return {begin, std::min(part_floats(rank_count, floats), floats - begin)};
}

// Every rank gets its part of all others' messages, one after the other.
void scatter(void* stream, const float* message, size_t floats, const GpuNcclLink& link) {
  NcclTransfer transfers[kGpuRanksMax];
  size_t count = 0;
  float* to = link.received;
  const size_t own = part_of(link.rank, link.rank_count, floats).count;
  for (size_t peer = 0; peer < link.rank_count; ++peer) {
    if (peer == link.rank) continue;
    const Part part = part_of(peer, link.rank_count, floats);
    transfers[count++] = {peer, message + part.begin, part.count, to, own};
    to += part_floats(link.rank_count, floats);
  }
  link.ranks->exchange(link.rank, stream, std::span(transfers, count));
}

// Everyone's part of the message to all others, in its place.
void gather(void* stream, float* message, size_t floats, const GpuNcclLink& link) {
  NcclTransfer transfers[kGpuRanksMax];
  size_t count = 0;
  const Part own = part_of(link.rank, link.rank_count, floats);
  for (size_t peer = 0; peer < link.rank_count; ++peer) {
    if (peer == link.rank) continue;
    const Part part = part_of(peer, link.rank_count, floats);
    transfers[count++] = {peer, message + own.begin, own.count, message + part.begin, part.count};
  }
  link.ranks->exchange(link.rank, stream, std::span(transfers, count));
}

// The sum over the contributors (ranks, ascending) of `message`, into `output` on all ranks. The
// others send as well; their parts are not added.
void sum_in_parts(void* stream, const float* message, size_t floats, GpuPartSum sum,
                  std::span<const size_t> contributors, const GpuNcclLink& link,
                  const GpuCollectives& collectives) {
  scatter(stream, message, floats, link);
  float* const output = sum.output;
  const Part own = part_of(link.rank, link.rank_count, floats);
  const float* received = link.received;
  for (size_t rank = 0; rank < link.rank_count; ++rank) {
    const float* const part = rank == link.rank ? message + own.begin : received;
    if (std::ranges::count(contributors, rank) > 0) sum.parts[sum.part_count++] = part;
    if (rank != link.rank) received += part_floats(link.rank_count, floats);
  }
  sum.output = output + own.begin;
  sum.count = own.count;
  collectives.sum_parts(stream, sum);
  gather(stream, output, floats, link);
}

// Rows whose columns go at once: as many as transfers have space on the stack. Not measured.
constexpr size_t kGatheredRows = 16;

void check_link(const GpuNcclLink& link) {
  CHECK(link.ranks != nullptr && link.received != nullptr, "rank {} is not joined by NCCL",
        link.rank);
  CHECK(link.rank < link.rank_count && link.rank_count <= kGpuRanksMax, "rank {} of {}", link.rank,
        link.rank_count);
}

}  // namespace

size_t gpu_nccl_received_floats(size_t rank_count, size_t floats) {
  return rank_count == 2 ? floats : (rank_count - 1) * part_floats(rank_count, floats);
}

size_t nccl_sent_bytes(const GpuNcclLink& link, size_t floats) {
  return 2 * (link.rank_count - 1) * floats / link.rank_count * sizeof(float);
}

void nccl_all_reduce(void* stream, const GpuAllReduce& sum, const GpuNcclLink& link,
                     const GpuCollectives& collectives) {
  check_link(link);
  CHECK(sum.contributors.size() <= link.rank_count, "{} of {} ranks contribute to a sum by NCCL",
        sum.contributors.size(), link.rank_count);
  CHECK(sum.partial_stride == sum.output_stride, "rows of {} floats are added to rows of {}",
        sum.partial_stride, sum.output_stride);
  CHECK(sum.norm_count == 0, "{} norms behind a sum by NCCL", sum.norm_count);
  const size_t floats = sum.row_count * sum.partial_stride;
  if (floats == 0 || sum.contributors.empty()) return;
  GpuPartSum parts = {.output = sum.output, .count = floats, .bf16 = sum.bf16};
  if (link.rank_count > 2 || sum.bf16 || sum.contributors.size() < link.rank_count) {
    sum_in_parts(stream, sum.partial, floats, parts, sum.contributors, link, collectives);
    return;
  }
  link.ranks->all_reduce(link.rank, stream, sum.partial, link.received, floats);
  parts.parts[0] = link.received;
  parts.part_count = 1;
  collectives.sum_parts(stream, parts);
}

void nccl_join(void* stream, float* values, size_t count, const GpuNcclLink& link,
               const GpuCollectives& collectives) {
  check_link(link);
  if (count == 0) return;
  if (link.rank_count == 2) {
    link.ranks->all_reduce(link.rank, stream, values, values, count);
    return;
  }
  std::array<size_t, kGpuRanksMax> all = {};
  std::iota(all.begin(), all.end(), size_t{0});
  sum_in_parts(stream, values, count, {.output = values, .add = false},
               std::span(all).first(link.rank_count), link, collectives);
}

void nccl_gather_columns(void* stream, float* rows, size_t stride, size_t row_count,
                         std::span<const Range> columns, const GpuNcclLink& link) {
  check_link(link);
  CHECK(columns.size() == link.rank_count, "columns of {} ranks of {}", columns.size(),
        link.rank_count);
  std::array<NcclTransfer, kGatheredRows * kGpuRanksMax> transfers;
  for (size_t first = 0; first < row_count; first += kGatheredRows) {
    size_t count = 0;
    for (size_t row = first; row < std::min(row_count, first + kGatheredRows); ++row) {
      float* const begin = rows + row * stride;
      for (size_t rank = 1; rank < link.rank_count; ++rank) {
        const Range part = columns[rank];
        if (part.empty() || (link.rank != 0 && link.rank != rank)) continue;
        NcclTransfer& transfer = transfers[count++];
        transfer =
            link.rank == 0
                ? NcclTransfer{.peer = rank,
                               .receive = begin + part.begin,
                               .receive_count = part.size()}
                : NcclTransfer{.peer = 0, .send = begin + part.begin, .send_count = part.size()};
      }
    }
    link.ranks->exchange(link.rank, stream, std::span(transfers).first(count));
  }
}

}  // namespace lockstep
