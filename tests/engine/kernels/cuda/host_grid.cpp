#include "tests/engine/kernels/cuda/host_grid.h"

#include <sched.h>
#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "engine/base/check.h"

namespace lockstep {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr int kGarbage = 0xA5;

// Where threads are that wait for one another: each has come so often.
struct Meeting {
  unsigned arrived = 0;
  uint64_t round = 0;
};

// For whom a thread waits; it has no turn until they have met.
struct Wait {
  const Meeting* meeting = nullptr;
  uint64_t round = 0;

  bool over() const { return meeting == nullptr || meeting->round != round; }
};

struct Warp {
  Meeting meeting;
  // Two sets: a lane may bring its next words before another has looked at the last ones.
  std::array<HostGrid::WarpWords, 2> words;
};

// Where a thread of the grid, or who gives them their turns, is to go on. A context begins it; from
// then on jumps between stacks do, which ask the system for nothing.
struct Place {
  ucontext_t context = {};
  jmp_buf jump = {};
  bool begun = false;
};

struct Block {
  HostGrid::Shape shape;
  const std::function<void()>* kernel = nullptr;
  unsigned column = 0;
  unsigned row = 0;
  std::unique_ptr<std::byte[]> shared;
  std::byte* shared_begin = nullptr;
  std::vector<Place> places;  // by thread
  std::vector<bool> ended;
  std::vector<Wait> waits;  // by thread
  std::vector<Warp> warps;
  std::vector<HostGrid::Copies> copies;  // by thread
  Meeting meeting;
  Place scheduler;
  unsigned thread = 0;
  bool moved = false;  // since the last sweep over the threads
};

thread_local Block* block = nullptr;
thread_local HostGrid::Order block_order = HostGrid::Order::kForward;
thread_local std::mt19937 random;
// Kept from one grid to the next: to have them anew takes longer than most kernels.
thread_local std::vector<std::unique_ptr<char[]>> stacks;

void go_on(Place& from, Place& to) {
  if (_setjmp(from.jump) != 0) return;
  if (to.begun) _longjmp(to.jump, 1);
  to.begun = true;
  setcontext(&to.context);
}

void yield() {
  go_on(block->places[block->thread], block->scheduler);
}

void meet(Meeting& meeting, unsigned count) {
  const uint64_t round = meeting.round;
  block->moved = true;
  if (++meeting.arrived == count) {
    meeting.arrived = 0;
    ++meeting.round;
    return;
  }
  block->waits[block->thread] = {&meeting, round};
  yield();
}

Warp& own_warp() {
  return block->warps[block->thread / kWarpThreads];
}

void begin_thread() {
  (*block->kernel)();
  block->ended[block->thread] = true;
  block->moved = true;
  yield();
}

void prepare_thread(unsigned thread) {
  block->ended[thread] = false;
  block->copies[thread] = {};
  block->waits[thread] = {};
  block->places[thread].begun = false;
  ucontext_t& context = block->places[thread].context;
  getcontext(&context);
  context.uc_stack = {.ss_sp = stacks[thread].get(), .ss_flags = 0, .ss_size = kStackBytes};
  context.uc_link = nullptr;
  makecontext(&context, begin_thread, 0);
}

void run_block() {
  const unsigned count = block->shape.threads;
  std::memset(block->shared_begin, kGarbage, block->shape.shared_bytes);
  block->meeting = {};
  for (Warp& warp : block->warps) warp.meeting = {};
  for (unsigned thread = 0; thread < count; ++thread) prepare_thread(thread);
  unsigned running = count;
  while (running > 0) {
    block->moved = false;
    for (unsigned thread = 0; thread < count; ++thread) {
      if (block->ended[thread] || !block->waits[thread].over()) continue;
      block->thread = thread;
      go_on(block->scheduler, block->places[thread]);
      if (block->ended[thread]) --running;
    }
    // Whoever rests, or has met somebody, has moved.
    CHECK(block->moved, "{} of {} threads wait for others that have ended or wait elsewhere",
          running, count);
  }
}

std::vector<unsigned> ordered_blocks(unsigned count) {
  std::vector<unsigned> blocks(count);
  std::iota(blocks.begin(), blocks.end(), 0U);
  if (block_order == HostGrid::Order::kReverse) std::ranges::reverse(blocks);
  if (block_order == HostGrid::Order::kShuffled) std::ranges::shuffle(blocks, random);
  return blocks;
}

}  // namespace

void HostGrid::run(const Shape& shape, const std::function<void()>& kernel) {
  CHECK(block == nullptr, "a kernel cannot launch another");
  CHECK(shape.threads % kWarpThreads == 0, "{} threads are not whole warps", shape.threads);
  Block played;
  played.shape = shape;
  played.kernel = &kernel;
  played.shared = std::make_unique<std::byte[]>(shape.shared_bytes + 128);
  const auto address = reinterpret_cast<uintptr_t>(played.shared.get());
  played.shared_begin = played.shared.get() + (128 - address % 128);
  played.places.resize(shape.threads);
  played.scheduler.begun = true;
  played.ended.resize(shape.threads);
  played.waits.resize(shape.threads);
  played.copies.resize(shape.threads);
  played.warps.resize(shape.threads / kWarpThreads);
  while (stacks.size() < shape.threads) {
    stacks.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
  }
  block = &played;
  for (const unsigned index : ordered_blocks(shape.rows * shape.columns)) {
    played.row = index / shape.columns;
    played.column = index % shape.columns;
    run_block();
  }
  block = nullptr;
}

void HostGrid::set_order(Order order, uint32_t seed) {
  block_order = order;
  random.seed(seed);
}

const HostGrid::Shape& HostGrid::shape() {
  return block->shape;
}
unsigned HostGrid::thread() {
  return block->thread;
}
unsigned HostGrid::block_column() {
  return block->column;
}
unsigned HostGrid::block_row() {
  return block->row;
}
std::byte* HostGrid::shared_memory() {
  return block->shared_begin;
}

void HostGrid::meet_block() {
  meet(block->meeting, block->shape.threads);
}

void HostGrid::meet_warp() {
  meet(own_warp().meeting, kWarpThreads);
}

const HostGrid::WarpWords& HostGrid::exchange(const Words& own) {
  Warp& warp = own_warp();
  WarpWords& words = warp.words[warp.meeting.round % 2];
  words[block->thread % kWarpThreads] = own;
  meet(warp.meeting, kWarpThreads);
  return words;
}

HostGrid::Copies& HostGrid::copies() {
  return block->copies[block->thread];
}

void HostGrid::rest() {
  block->moved = true;
  yield();
  sched_yield();  // whom it waits for may be played by another thread
}

void HostGrid::check_aligned(const void* address, size_t bytes) {
  CHECK(reinterpret_cast<uintptr_t>(address) % bytes == 0, "{} is not aligned to {} bytes", address,
        bytes);
}

}  // namespace lockstep
