#include "engine/collectives/shared_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/base/range.h"

namespace lockstep {
namespace {

// Work is cut at multiples of this from a row's begin, so that no two ranks write one cache line.
constexpr size_t kUnitFloats = 16;

// How many floats are summed before they are added to the output: the sums stay in the first cache.
constexpr size_t kBlockFloats = 512;

// Rows and columns as one sequence of units.
class Units {
 public:
  explicit Units(const AllReduce& sum)
      : columns_(sum.column_count), per_row_((columns_ + kUnitFloats - 1) / kUnitFloats) {
    all_.end = sum.row_count * per_row_;
  }

  Range all() const { return all_; }
  Range of_rank(const Peers& peers) const {
    return share(all_, peers.rank, peers.distances.size());
  }

  // Calls work(row, first column, count) for all that lies in `units`, in blocks.
  template <typename Work>
  void for_each_block(Range units, Work work) const {
    if (units.begin == units.end) return;
    size_t row = units.begin / per_row_;
    size_t unit = units.begin % per_row_;
    for (size_t left = units.end - units.begin; left > 0; ++row, unit = 0) {
      const size_t here = std::min(left, per_row_ - unit);
      const size_t end = std::min(columns_, (unit + here) * kUnitFloats);
      for (size_t column = unit * kUnitFloats; column < end; column += kBlockFloats) {
        work(row, column, std::min(kBlockFloats, end - column));
      }
      left -= here;
    }
  }

 private:
  size_t columns_;
  size_t per_row_;
  Range all_;
};

// As float_to_bf16(), in a form that becomes vector instructions.
uint16_t round_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
  const uint32_t quiet = (bits >> 16U) | 0x40U;
  return static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

float widen(float value) {
  return value;
}

float widen(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16U);
}

// sums = the contributors' values, in order of rank.
template <typename T>
void add_contributors(const AllReduce& sum, const Peers& peers, const T* own, size_t count,
                      float* __restrict sums) {
  bool first = true;
  for (const size_t rank : sum.contributors) {
    const T* __restrict values = at_distance(own, peers.distances[rank]);
    if (first) {
      for (size_t index = 0; index < count; ++index) sums[index] = widen(values[index]);
    } else {
      for (size_t index = 0; index < count; ++index) sums[index] += widen(values[index]);
    }
    first = false;
  }
}

template <typename T>
void add(const T* __restrict values, size_t count, float* __restrict output) {
  for (size_t index = 0; index < count; ++index) output[index] += widen(values[index]);
}

template <typename T>
void push(const Peers& peers, T* own, size_t count) {
  for (size_t rank = 0; rank < peers.distances.size(); ++rank) {
    if (rank == peers.rank) continue;
    std::memcpy(at_distance(own, peers.distances[rank]), own, count * sizeof(T));
  }
}

size_t remote_contributors(const AllReduce& sum, const Peers& peers) {
  return sum.contributors.size() -
         static_cast<size_t>(std::ranges::count(sum.contributors, peers.rank));
}

// Adds `units` of all partials to the own output; and pushes it, or not.
size_t reduce_floats(const AllReduce& sum, const Peers& peers, const Units& cut, Range units,
                     bool push_result) {
  float sums[kBlockFloats];
  size_t floats = 0;
  cut.for_each_block(units, [&](size_t row, size_t column, size_t count) {
    add_contributors(sum, peers, sum.partial + row * sum.partial_stride + column, count, sums);
    float* output = sum.output + row * sum.output_stride + column;
    add(sums, count, output);
    if (push_result) push(peers, output, count);
    floats += count;
  });
  const size_t sent = push_result ? peers.distances.size() - 1 : 0;
  return floats * sizeof(float) * (remote_contributors(sum, peers) + sent);
}

void meet_all_ranks(Barrier& barrier, size_t worker) {
  barrier.arrive(worker);
  barrier.wait_for_all_ranks(worker);
}

size_t reduce_bf16(const AllReduce& sum, const Peers& peers, Barrier& barrier, size_t worker,
                   size_t worker_count) {
  const Units cut(sum);
  const Range everything = share(cut.all(), worker, worker_count);
  if (std::ranges::count(sum.contributors, peers.rank) > 0) {
    cut.for_each_block(everything, [&](size_t row, size_t column, size_t count) {
      const float* __restrict from = sum.partial + row * sum.partial_stride + column;
      uint16_t* __restrict to = sum.bf16_partial + row * sum.column_count + column;
      for (size_t index = 0; index < count; ++index) to[index] = round_to_bf16(from[index]);
    });
  }
  meet_all_ranks(barrier, worker);
  float sums[kBlockFloats];
  size_t values = 0;
  const Range slice = share(cut.of_rank(peers), worker, worker_count);
  cut.for_each_block(slice, [&](size_t row, size_t column, size_t count) {
    const size_t offset = row * sum.column_count + column;
    add_contributors(sum, peers, sum.bf16_partial + offset, count, sums);
    uint16_t* to = sum.bf16_sum + offset;
    for (size_t index = 0; index < count; ++index) to[index] = round_to_bf16(sums[index]);
    push(peers, to, count);
    values += count;
  });
  meet_all_ranks(barrier, worker);
  cut.for_each_block(everything, [&](size_t row, size_t column, size_t count) {
    add(sum.bf16_sum + row * sum.column_count + column, count,
        sum.output + row * sum.output_stride + column);
  });
  return values * sizeof(uint16_t) * (remote_contributors(sum, peers) + peers.distances.size() - 1);
}

// Measured with collectives_benchmark, two ranks of one core each that write what they give and
// read what they get: equal at 1 KiB; at 4 KiB one shot takes 1.6 times as long as slices, at 16
// KiB 1.3, at 1 MiB 2.1. Slices need no barrier of their own: what a rank adds up goes straight
// into the others' outputs. Below the threshold there would be a cache line per worker and no more.
constexpr size_t kOneShotBytesMax = 1024;

AllReduceAlgorithm choose(const AllReduce& sum) {
  return sum.row_count * sum.column_count * sizeof(float) <= kOneShotBytesMax
             ? AllReduceAlgorithm::kOneShot
             : AllReduceAlgorithm::kScatterAndGather;
}

}  // namespace

// Pushed, not pulled. Between two ranks of one core each that write their half of 16 KiB and read
// the whole (collectives_benchmark, medians of a quiet machine): pushed 1.4 us, pulled 1.6 us; of
// 4 KiB 0.33 and 0.50 us, of 1 MiB 37 and 60 us. Stores wait in the store buffer while the next are
// made, loads of remote lines are waited for. Pulling would also need a second barrier inside each
// rank that has several workers, before they may read what the others have fetched. Stores past the
// caches take 2.0 us for 16 KiB: the reader then finds the bytes in memory only. memcpy itself
// chooses such stores beyond the caches' size.
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

size_t all_reduce(const AllReduce& sum, const Peers& peers, Barrier& barrier, size_t worker,
                  size_t worker_count, AllReduceAlgorithm algorithm) {
  if (sum.contributors.empty()) return 0;
  if (sum.bf16_partial != nullptr) return reduce_bf16(sum, peers, barrier, worker, worker_count);
  const Units cut(sum);
  if (algorithm == AllReduceAlgorithm::kBySize) algorithm = choose(sum);
  const bool one_shot = algorithm == AllReduceAlgorithm::kOneShot;
  const Range units = share(one_shot ? cut.all() : cut.of_rank(peers), worker, worker_count);
  return reduce_floats(sum, peers, cut, units, !one_shot);
}

}  // namespace lockstep
