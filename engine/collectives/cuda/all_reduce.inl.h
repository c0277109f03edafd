// The kernels of gpu_all_reduce.h. Included after the words that kernels are written in: those of
// nvcc (all_reduce.cu), or those of the tests' host grid.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/collectives/cuda/sum_norms.inl.h"
#include "engine/collectives/cuda/sum_units.inl.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/collectives/gpu_mailbox.h"
#include "engine/collectives/gpu_sum_launch.h"

namespace lockstep {
namespace {

// The number of partials that are asked for before the first is added. Not measured.
constexpr unsigned kPartialsAtOnce = 4;

// A block's way to the blocks of the same index of all other ranks. All threads call everything.
// Its kernels do not let the next launch in: this rank's next blocks, which would wait where they
// are, could take the places that another rank on the same GPU needs to come here.
class Channel {
 public:
  // The layout of shared memory: the launch gives this many bytes.
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

  // The slot from `sender` to `reader`, of this round or of the one after it.
  GPU_FUNCTION std::byte* slot(unsigned reader, unsigned sender) const {
    return slot_of(round_, reader, sender);
  }
  GPU_FUNCTION std::byte* next_slot(unsigned reader, unsigned sender) const {
    return slot_of(round_ + 1, reader, sender);
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
  GPU_FUNCTION std::byte* slot_of(uint32_t round, unsigned reader, unsigned sender) const {
    return peers_.mailboxes[reader] + gpu_slot_offset(index_, round, sender, peers_.rank_count);
  }

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
    uint32_t told = milliseconds(begin);
    while (!has_come(peer)) {
      const uint64_t now = nanoseconds();
      if (milliseconds(now) != told) {
        told = milliseconds(now);
        tell_waiting(peer, told);
      }
      if (now - begin > peers_.deadline_ns) return false;
      rest();
    }
    return true;
  }

  // About that: a division is dear.
  GPU_FUNCTION static uint32_t milliseconds(uint64_t nanoseconds) {
    return static_cast<uint32_t>(nanoseconds >> 20U);
  }

  // If the host gives up on the pass sooner than this rank on the other, it sees which rank is at
  // fault.
  GPU_FUNCTION void tell_waiting(unsigned peer, uint32_t now) const {
    if (peers_.waiting != nullptr) store_release(peers_.waiting, now * kGpuWaitingTick + peer + 1);
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

// The number of the launch's units that this pass has: the same on every rank.
GPU_FUNCTION unsigned units_of(const GpuSumLaunch& sum) {
  if (sum.row_limit == nullptr) return sum.unit_count;
  const unsigned units = *sum.row_limit * sum.units_per_row;
  return units < sum.unit_count ? units : sum.unit_count;
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

// Adds the partials of a unit, which lie at `index` of the slots, and returns what it has become.
// Norms are for the caller to store.
template <typename Packed>
GPU_FUNCTION Unit add_partials(const Channel& channel, const GpuPeers& peers,
                               const GpuSumLaunch& sum, const UnitPlace& place, unsigned index) {
  float* row = sum.output + place.row * sum.output_stride;
  Unit output = load_unit(row, place, sum.output_aligned);
  const Unit added = sum_of_partials<Packed>(channel, peers, sum.contributors, index);
  for (unsigned value = 0; value < kGpuUnitFloats; ++value) {
    output.values[value] += added.values[value];
  }
  store_unit(row, place, sum.output_aligned, output);
  return output;
}

template <typename Packed>
GPU_FUNCTION void add_piece(const Channel& channel, const GpuPeers& peers, const GpuSumLaunch& sum,
                            unsigned begin, unsigned end) {
  for (unsigned first = begin; first < end; first += thread_count()) {
    const unsigned unit = first + thread_index();
    const UnitPlace place = place_of(sum, unit);
    Unit output = {};
    if (unit < end) output = add_partials<Packed>(channel, peers, sum, place, unit - begin);
    store_norms(sum, place, output, unit < end);
  }
}

// A piece that is cut into shares, by rank: whole chunks. The last ones may be shorter, or have
// nothing.
class SharedPiece {
 public:
  struct Place {
    unsigned unit;   // of the sum
    unsigned owner;  // the rank that adds it up
    unsigned index;  // in its share
  };

  GPU_FUNCTION SharedPiece(unsigned begin, unsigned count, unsigned rank_count)
      : begin_(begin),
        count_(count),
        share_(round_up(divide_up(count, rank_count), kGpuChunkUnits)) {}

  GPU_FUNCTION unsigned count() const { return count_; }
  GPU_FUNCTION unsigned share_begin(unsigned rank) const { return begin_ + offset_of(rank); }
  GPU_FUNCTION unsigned share_end(unsigned rank) const { return begin_ + offset_of(rank + 1); }
  GPU_FUNCTION unsigned others_count(unsigned rank) const {
    return count_ - (offset_of(rank + 1) - offset_of(rank));
  }

  // All units, in turns: `rank` begins with the next one's share, so that not all of them begin
  // with the same link, and ends with its own, after turn others_count().
  GPU_FUNCTION Place place(unsigned turn, unsigned rank) const {
    const unsigned offset = turn + offset_of(rank + 1);
    const unsigned within = offset < count_ ? offset : offset - count_;
    return {begin_ + within, within / share_, within % share_};
  }

 private:
  GPU_FUNCTION unsigned offset_of(unsigned rank) const {
    return rank * share_ < count_ ? rank * share_ : count_;
  }

  unsigned begin_;
  unsigned count_;
  unsigned share_;
};

// To each rank its share, to this one its own as well.
template <typename Packed>
GPU_FUNCTION void send_shares(const Channel& channel, const GpuPeers& peers,
                              const GpuSumLaunch& sum, const SharedPiece& piece) {
  const auto self = static_cast<unsigned>(peers.rank);
  for (unsigned turn = thread_index(); turn < piece.count(); turn += thread_count()) {
    const SharedPiece::Place at = piece.place(turn, self);
    const UnitPlace place = place_of(sum, at.unit);
    Packed packed;
    pack(load_unit(sum.partial + place.row * sum.partial_stride, place, sum.partial_aligned),
         packed);
    reinterpret_cast<Packed*>(channel.slot(at.owner, self))[at.index] = packed;
  }
}

// Adds up the own share and sends it to all others, which read it in the next round.
template <typename Packed>
GPU_FUNCTION void add_share(const Channel& channel, const GpuPeers& peers, const GpuSumLaunch& sum,
                            const SharedPiece& piece) {
  const auto ranks = static_cast<unsigned>(peers.rank_count);
  const auto self = static_cast<unsigned>(peers.rank);
  const unsigned begin = piece.share_begin(self);
  const unsigned end = piece.share_end(self);
  for (unsigned first = begin; first < end; first += thread_count()) {
    const unsigned unit = first + thread_index();
    const UnitPlace place = place_of(sum, unit);
    Unit output = {};
    if (unit < end) {
      const unsigned index = unit - begin;
      output = add_partials<Packed>(channel, peers, sum, place, index);
      Words4 packed;
      pack(output, packed);
      for (unsigned step = 1; step < ranks; ++step) {
        const unsigned reader = self + step < ranks ? self + step : self + step - ranks;
        reinterpret_cast<Words4*>(channel.next_slot(reader, self))[index] = packed;
      }
    }
    store_norms(sum, place, output, unit < end);
  }
}

GPU_FUNCTION void take_shares(const Channel& channel, const GpuPeers& peers,
                              const GpuSumLaunch& sum, const SharedPiece& piece) {
  const auto self = static_cast<unsigned>(peers.rank);
  const unsigned count = piece.others_count(self);
  for (unsigned first = 0; first < count; first += thread_count()) {
    const unsigned turn = first + thread_index();
    const SharedPiece::Place at = piece.place(turn, self);
    const UnitPlace place = place_of(sum, at.unit);
    Unit output = {};
    if (turn < count) {
      const auto* const slot = reinterpret_cast<const Words4*>(channel.slot(self, at.owner));
      output = unpack(slot[at.index]);
      store_unit(sum.output + place.row * sum.output_stride, place, sum.output_aligned, output);
    }
    store_norms(sum, place, output, turn < count);
  }
}

template <typename Packed>
GPU_KERNEL void all_reduce_one_shot(const GpuPeers peers, const GpuSumLaunch sum) {
  wait_for_launches();
  Channel channel(peers, block_column());
  if (channel.failed()) return;
  const bool contributes = (sum.contributors >> peers.rank & 1U) != 0;
  const unsigned units = units_of(sum);
  const unsigned stride = block_columns() * sum.piece_units;
  for (unsigned begin = block_column() * sum.piece_units; begin < units; begin += stride) {
    const unsigned left = units - begin;
    const unsigned end = begin + (left < sum.piece_units ? left : sum.piece_units);
    channel.begin_round();
    if (contributes) send_piece<Packed>(channel, peers, sum, begin, end);
    if (!channel.meet_peers()) return;
    add_piece<Packed>(channel, peers, sum, begin, end);
  }
  channel.close();
}

template <typename Packed>
GPU_KERNEL void all_reduce_two_shots(const GpuPeers peers, const GpuSumLaunch sum) {
  wait_for_launches();
  Channel channel(peers, block_column());
  if (channel.failed()) return;
  const bool contributes = (sum.contributors >> peers.rank & 1U) != 0;
  const unsigned units = units_of(sum);
  const unsigned stride = block_columns() * sum.piece_units;
  for (unsigned begin = block_column() * sum.piece_units; begin < units; begin += stride) {
    const unsigned left = units - begin;
    const SharedPiece piece(begin, left < sum.piece_units ? left : sum.piece_units,
                            static_cast<unsigned>(peers.rank_count));
    channel.begin_round();
    if (contributes) send_shares<Packed>(channel, peers, sum, piece);
    if (!channel.meet_peers()) return;
    // Goes to the next round's slots: all have read their former contents, as they have come here.
    add_share<Packed>(channel, peers, sum, piece);
    channel.begin_round();
    if (!channel.meet_peers()) return;
    take_shares(channel, peers, sum, piece);
  }
  channel.close();
}

GPU_KERNEL void meet_all_peers(const GpuPeers peers) {
  wait_for_launches();
  Channel channel(peers, 0);
  if (channel.failed()) return;
  channel.begin_round();
  if (channel.meet_peers()) channel.close();
}

GPU_KERNEL void sum_parts(const GpuPartSum sum, bool aligned) {
  follow_launches();
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
  const auto in_one = sum.bf16 ? all_reduce_one_shot<Words2> : all_reduce_one_shot<Words4>;
  const auto in_two = sum.bf16 ? all_reduce_two_shots<Words2> : all_reduce_two_shots<Words4>;
  launch(stream, grid, sum.two_shots ? in_two : in_one, peers, arguments);
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
