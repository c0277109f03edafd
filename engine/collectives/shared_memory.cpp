#include "engine/collectives/shared_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/base/checked_math.h"
#include "engine/base/range.h"

namespace lockstep {
namespace {

// Work is cut at multiples of this from a row's begin, so that no two ranks write one cache line.
constexpr size_t kUnitFloats = 16;

// How many floats are summed before they are added to the output: the sums stay in the first cache.
constexpr size_t kBlockFloats = 512;

// Columns of all rows as one sequence of units.
class Units {
 public:
  static Units all(const AllReduce& sum) { return Units(sum, {0, units_of_row(sum)}); }

  // A rank's columns, whatever rows there are.
  static Units of_rank(const AllReduce& sum, const Peers& peers) {
    return Units(sum, share({0, units_of_row(sum)}, peers.rank, peers.distances.size()));
  }

  // A worker's.
  Range of(size_t worker, size_t worker_count) const { return share(all_, worker, worker_count); }

  // Calls work(row, first column, count) for all that lies in `units`, in blocks.
  template <typename Work>
  void for_each_block(Range units, Work work) const {
    if (units.empty()) return;
    size_t row = units.begin / per_row_;
    size_t unit = units.begin % per_row_;
    for (size_t left = units.size(); left > 0; ++row, unit = 0) {
      const size_t here = std::min(left, per_row_ - unit);
      const size_t end = std::min(columns_, (first_ + unit + here) * kUnitFloats);
      for (size_t column = (first_ + unit) * kUnitFloats; column < end; column += kBlockFloats) {
        work(row, column, std::min(kBlockFloats, end - column));
      }
      left -= here;
    }
  }

 private:
  Units(const AllReduce& sum, Range of_row)
      : columns_(sum.column_count),
        first_(of_row.begin),
        per_row_(of_row.size()),
        all_{0, sum.row_count * per_row_} {}

  static size_t units_of_row(const AllReduce& sum) {
    return divide_up(sum.column_count, kUnitFloats);
  }

  size_t columns_;
  size_t first_;  // unit of each row
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

// A rank adds up into its own output and writes the others', so no barrier is needed between.
size_t reduce_floats(const AllReduce& sum, const Peers& peers, size_t worker, size_t worker_count) {
  const Units own = Units::of_rank(sum, peers);
  float sums[kBlockFloats];
  size_t floats = 0;
  own.for_each_block(own.of(worker, worker_count), [&](size_t row, size_t column, size_t count) {
    add_contributors(sum, peers, sum.partial + row * sum.partial_stride + column, count, sums);
    float* output = sum.output + row * sum.output_stride + column;
    add(sums, count, output);
    push(peers, output, count);
    floats += count;
  });
  return floats * sizeof(float) * (remote_contributors(sum, peers) + peers.distances.size() - 1);
}

void meet_all_ranks(Barrier& barrier, size_t worker) {
  barrier.arrive(worker);
  barrier.wait_for_all_ranks(worker);
}

size_t reduce_bf16(const AllReduce& sum, const Peers& peers, Barrier& barrier, size_t worker,
                   size_t worker_count) {
  const Units all = Units::all(sum);
  const Range everything = all.of(worker, worker_count);
  if (std::ranges::count(sum.contributors, peers.rank) > 0) {
    all.for_each_block(everything, [&](size_t row, size_t column, size_t count) {
      const float* __restrict from = sum.partial + row * sum.partial_stride + column;
      uint16_t* __restrict to = sum.bf16_partial + row * sum.column_count + column;
      for (size_t index = 0; index < count; ++index) to[index] = round_to_bf16(from[index]);
    });
  }
  meet_all_ranks(barrier, worker);
  float sums[kBlockFloats];
  size_t values = 0;
  const Units own = Units::of_rank(sum, peers);
  own.for_each_block(own.of(worker, worker_count), [&](size_t row, size_t column, size_t count) {
    const size_t offset = row * sum.column_count + column;
    add_contributors(sum, peers, sum.bf16_partial + offset, count, sums);
    uint16_t* to = sum.bf16_sum + offset;
    for (size_t index = 0; index < count; ++index) to[index] = round_to_bf16(sums[index]);
    push(peers, to, count);
    values += count;
  });
  meet_all_ranks(barrier, worker);
  all.for_each_block(everything, [&](size_t row, size_t column, size_t count) {
    add(sum.bf16_sum + row * sum.column_count + column, count,
        sum.output + row * sum.output_stride + column);
  });
  return values * sizeof(uint16_t) * (remote_contributors(sum, peers) + peers.distances.size() - 1);
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

// Every rank could add up everything for itself instead (one shot). Measured with
// collectives_benchmark, two ranks of one core each that write what they give and read what they
// get: that was as fast at 1 KiB, took 1.6 times as long at 4 KiB, 1.3 at 16 KiB, 2.1 at 1 MiB.
size_t all_reduce(const AllReduce& sum, const Peers& peers, Barrier& barrier, size_t worker,
                  size_t worker_count) {
  if (sum.contributors.empty()) return 0;
  if (sum.bf16_partial != nullptr) return reduce_bf16(sum, peers, barrier, worker, worker_count);
  return reduce_floats(sum, peers, worker, worker_count);
}

}  // namespace lockstep
