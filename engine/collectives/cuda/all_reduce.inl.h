// The kernels of gpu_all_reduce.h. Included after the words that kernels are written in: those of
// nvcc (all_reduce.cu), or those of the tests' host grid.
#pragma once

#include "engine/collectives/gpu_all_reduce.h"
#include "engine/collectives/gpu_mailbox.h"
#include "engine/collectives/gpu_sum_launch.h"

namespace lockstep {
namespace {

// So many partials are asked for before the first is added. Not measured.
constexpr unsigned kPartialsAtOnce = 4;

struct Unit {
  float values[kGpuUnitFloats];
};

// A unit as it travels: Words4 as f32, Words2 as bf16.
GPU_FUNCTION void pack(const Unit& unit, Words4& packed) {
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    packed.words[index] = float_to_bits(unit.values[index]);
  }
}
GPU_FUNCTION void pack(const Unit& unit, Words2& packed) {
  for (unsigned index = 0; index < kGpuUnitFloats / 2; ++index) {
    packed.words[index] = bf16_pair(unit.values[2 * index], unit.values[2 * index + 1]);
  }
}
GPU_FUNCTION Unit unpack(const Words4& packed) {
  Unit unit;
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    unit.values[index] = bits_to_float(packed.words[index]);
  }
  return unit;
}
GPU_FUNCTION Unit unpack(const Words2& packed) {
  Unit unit;
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    const uint32_t word = packed.words[index / 2];
    unit.values[index] = from_bf16(static_cast<uint16_t>(word >> (index % 2 * 16)));
  }
  return unit;
}

// A block's way to the blocks of the same index of all other ranks. All threads call everything.
class Channel {
 public:
  // Where what is shared lies: the launch gives so many bytes.
  struct Shared {
    uint32_t round;
    uint32_t failed;
  };

  GPU_FUNCTION Channel(const GpuPeers& peers, unsigned index)
      : peers_(peers),
        index_(index),
        own_(*reinterpret_cast<GpuMailbox*>(peers.mailboxes[peers.rank])),
        shared_(*reinterpret_cast<Shared*>(shared_memory())),
        begin_ns_(nanoseconds()) {
    if (thread_index() == 0) shared_ = {own_.channels[index].round, load_acquire(&own_.failed)};
    meet_block();
    round_ = shared_.round;
    failed_ = shared_.failed != 0;
    meet_block();  // before any thread may write `failed`
  }

  GPU_FUNCTION bool failed() const { return failed_; }

  GPU_FUNCTION void begin_round() { ++round_; }

  // Of this round: what `sender` sends to `reader`.
  GPU_FUNCTION std::byte* slot(unsigned reader, unsigned sender) const {
    return peers_.mailboxes[reader] + gpu_slot_offset(index_, round_, sender, peers_.rank_count);
  }

  // Tells all ranks that this one has sent, waits until all have. False: one has not in time.
  GPU_FUNCTION bool meet_peers() {
    meet_block();
    const unsigned peer = thread_index();
    if (peer < peers_.rank_count && peer != peers_.rank) {
      // Pairs with await() of the other rank. What the block's other threads have sent comes
      // before, by meet_block().
      store_release(&mailbox(peer).channels[index_].arrived[peers_.rank], round_);
      if (!await(peer)) fail(peer);
    }
    meet_block();
    failed_ = shared_.failed != 0;
    return !failed_;
  }

  // After the last round.
  GPU_FUNCTION void close() {
    if (thread_index() != 0) return;
    own_.channels[index_].round = round_;
    if (index_ != 0 || peers_.spent_ns == nullptr) return;
    own_.spent_ns += nanoseconds() - begin_ns_;
    *peers_.spent_ns = own_.spent_ns;
  }

 private:
  GPU_FUNCTION GpuMailbox& mailbox(unsigned rank) const {
    return *reinterpret_cast<GpuMailbox*>(peers_.mailboxes[rank]);
  }

  // The other rank may be a round ahead.
  GPU_FUNCTION bool has_come(unsigned peer) const {
    const uint32_t arrived = load_acquire(&own_.channels[index_].arrived[peer]);
    return static_cast<int32_t>(arrived - round_) >= 0;
  }

  GPU_FUNCTION bool await(unsigned peer) const {
    if (has_come(peer)) return true;
    const uint64_t begin = nanoseconds();
    while (!has_come(peer)) {
      if (nanoseconds() - begin > peers_.deadline_ns) return false;
      rest();
    }
    return true;
  }

  GPU_FUNCTION void fail(unsigned peer) {
    shared_.failed = 1;
    store_release(&own_.failed, 1);
    store_release(peers_.failure, peer + 1);
  }

  const GpuPeers& peers_;
  unsigned index_;
  GpuMailbox& own_;
  Shared& shared_;
  uint64_t begin_ns_;
  uint32_t round_ = 0;
  bool failed_ = false;
};

// Where a unit lies in rows, and how much of it there is.
struct UnitPlace {
  unsigned row;
  unsigned column;
  unsigned count;
};

GPU_FUNCTION UnitPlace place_of(const GpuSumLaunch& sum, unsigned unit) {
  const unsigned row = unit / sum.units_per_row;
  const unsigned column = unit % sum.units_per_row * kGpuUnitFloats;
  const unsigned left = sum.column_count - column;
  return {row, column, left < kGpuUnitFloats ? left : kGpuUnitFloats};
}

// Zeros where there are no columns.
GPU_FUNCTION Unit load_unit(const float* row, const UnitPlace& place, bool aligned) {
  const float* from = row + place.column;
  if (aligned && place.count == kGpuUnitFloats) {
    return unpack(*reinterpret_cast<const Words4*>(from));
  }
  Unit unit = {};
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    if (index < place.count) unit.values[index] = from[index];
  }
  return unit;
}

GPU_FUNCTION void store_unit(float* row, const UnitPlace& place, bool aligned, const Unit& unit) {
  float* to = row + place.column;
  if (aligned && place.count == kGpuUnitFloats) {
    pack(unit, *reinterpret_cast<Words4*>(to));
    return;
  }
  for (unsigned index = 0; index < kGpuUnitFloats; ++index) {
    if (index < place.count) to[index] = unit.values[index];
  }
}

// To all ranks, this one's own mailbox among them: so all partials are read alike.
template <typename Packed>
GPU_FUNCTION void send_piece(const Channel& channel, const GpuPeers& peers, const GpuSumLaunch& sum,
                             unsigned begin, unsigned end) {
  const auto ranks = static_cast<unsigned>(peers.rank_count);
  const auto self = static_cast<unsigned>(peers.rank);
  for (unsigned unit = begin + thread_index(); unit < end; unit += thread_count()) {
    const UnitPlace place = place_of(sum, unit);
    Packed packed;
    pack(load_unit(sum.partial + place.row * sum.partial_stride, place, sum.partial_aligned),
         packed);
    // From the next one on: not all ranks begin with the same link.
    for (unsigned step = 1; step <= ranks; ++step) {
      const unsigned reader = self + step < ranks ? self + step : self + step - ranks;
      reinterpret_cast<Packed*>(channel.slot(reader, self))[unit - begin] = packed;
    }
  }
}

template <typename Packed>
GPU_FUNCTION Unit sum_of_partials(const Channel& channel, const GpuPeers& peers,
                                  uint32_t contributors, unsigned index) {
  const auto ranks = static_cast<unsigned>(peers.rank_count);
  const auto self = static_cast<unsigned>(peers.rank);
  const auto contributes = [contributors](unsigned rank) {
    return (contributors >> rank & 1U) != 0;
  };
  Unit sum = {};
  bool first = true;
  for (unsigned base = 0; base < ranks; base += kPartialsAtOnce) {
    Packed partials[kPartialsAtOnce];
    for (unsigned next = 0; next < kPartialsAtOnce; ++next) {
      if (!contributes(base + next)) continue;
      partials[next] = reinterpret_cast<const Packed*>(channel.slot(self, base + next))[index];
    }
    for (unsigned next = 0; next < kPartialsAtOnce; ++next) {
      if (!contributes(base + next)) continue;
      const Unit unit = unpack(partials[next]);
      for (unsigned value = 0; value < kGpuUnitFloats; ++value) {
        sum.values[value] = first ? unit.values[value] : sum.values[value] + unit.values[value];
      }
      first = false;
    }
  }
  return sum;
}

template <typename Packed>
GPU_FUNCTION void add_piece(const Channel& channel, const GpuPeers& peers, const GpuSumLaunch& sum,
                            unsigned begin, unsigned end) {
  for (unsigned unit = begin + thread_index(); unit < end; unit += thread_count()) {
    const UnitPlace place = place_of(sum, unit);
    float* row = sum.output + place.row * sum.output_stride;
    Unit output = load_unit(row, place, sum.output_aligned);
    const Unit added = sum_of_partials<Packed>(channel, peers, sum.contributors, unit - begin);
    for (unsigned value = 0; value < kGpuUnitFloats; ++value) {
      output.values[value] += added.values[value];
    }
    store_unit(row, place, sum.output_aligned, output);
  }
}

template <typename Packed>
GPU_KERNEL void all_reduce_one_shot(const GpuPeers peers, const GpuSumLaunch sum) {
  Channel channel(peers, block_column());
  if (channel.failed()) return;
  const bool contributes = (sum.contributors >> peers.rank & 1U) != 0;
  const unsigned stride = block_columns() * sum.piece_units;
  for (unsigned begin = block_column() * sum.piece_units; begin < sum.unit_count; begin += stride) {
    const unsigned left = sum.unit_count - begin;
    const unsigned end = begin + (left < sum.piece_units ? left : sum.piece_units);
    channel.begin_round();
    if (contributes) send_piece<Packed>(channel, peers, sum, begin, end);
    if (!channel.meet_peers()) return;
    add_piece<Packed>(channel, peers, sum, begin, end);
  }
  channel.close();
}

GPU_KERNEL void meet_all_peers(const GpuPeers peers) {
  Channel channel(peers, 0);
  if (channel.failed()) return;
  channel.begin_round();
  if (channel.meet_peers()) channel.close();
}

GPU_KERNEL void sum_parts(const GpuPartSum sum, bool aligned) {
  const size_t stride = static_cast<size_t>(block_columns()) * thread_count() * kGpuUnitFloats;
  const size_t first =
      (static_cast<size_t>(block_column()) * thread_count() + thread_index()) * kGpuUnitFloats;
  for (size_t begin = first; begin < sum.count; begin += stride) {
    const size_t left = sum.count - begin;
    const UnitPlace place = {0, 0,
                             left < kGpuUnitFloats ? static_cast<unsigned>(left) : kGpuUnitFloats};
    Unit total = {};
    for (unsigned part = 0; part < sum.part_count; ++part) {
      Unit unit = load_unit(sum.parts[part] + begin, place, aligned);
      if (sum.bf16) {
        Words2 packed;
        pack(unit, packed);
        unit = unpack(packed);
      }
      for (unsigned value = 0; value < kGpuUnitFloats; ++value) {
        total.values[value] =
            part == 0 ? unit.values[value] : total.values[value] + unit.values[value];
      }
    }
    float* to = sum.output + begin;
    if (sum.add) {
      const Unit before = load_unit(to, place, aligned);
      for (unsigned value = 0; value < kGpuUnitFloats; ++value) {
        total.values[value] = before.values[value] + total.values[value];
      }
    }
    store_unit(to, place, aligned, total);
  }
}

}  // namespace

void gpu_all_reduce(void* stream, const GpuAllReduce& sum, const GpuPeers& peers) {
  const GpuSumLaunch arguments = gpu_sum_launch(sum, peers);
  const Grid grid = {.columns = arguments.block_count,
                     .rows = 1,
                     .threads = kGpuSumThreads,
                     .shared_bytes = sizeof(Channel::Shared)};
  launch(stream, grid, sum.bf16 ? all_reduce_one_shot<Words2> : all_reduce_one_shot<Words4>, peers,
         arguments);
}

void gpu_meet(void* stream, const GpuPeers& peers) {
  check_gpu_peers(peers);
  const Grid grid = {
      .columns = 1, .rows = 1, .threads = kWarpThreads, .shared_bytes = sizeof(Channel::Shared)};
  launch(stream, grid, meet_all_peers, peers);
}

void gpu_sum_parts(void* stream, const GpuPartSum& sum) {
  const GpuPartSumLaunch sized = gpu_part_sum_launch(sum);
  if (sized.block_count == 0) return;
  const Grid grid = {
      .columns = sized.block_count, .rows = 1, .threads = kGpuSumThreads, .shared_bytes = 0};
  launch(stream, grid, sum_parts, sum, sized.aligned);
}

}  // namespace lockstep
