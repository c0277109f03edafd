#include "tests/engine/kernels/cuda/host_grid.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/check.h"

// Puts what a callee preserves (System V) on the stack, writes its end to `from`, and returns on
// the stack that ends at `to`.
extern "C" void lockstep_switch_stacks(std::byte** from, std::byte* to);
asm(R"(
  .pushsection .text
  .globl lockstep_switch_stacks
  .hidden lockstep_switch_stacks
  .type lockstep_switch_stacks, @function
lockstep_switch_stacks:
  .cfi_startproc
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .cfi_endproc
  .size lockstep_switch_stacks, .-lockstep_switch_stacks
  .popsection
)");

namespace lockstep {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr int kGarbage = 0xA5;

// A barrier: the threads that have arrived in this round, and the rounds that are over.
struct Rendezvous {
  unsigned arrived = 0;
  uint64_t round = 0;
};

// For whom a thread waits; it has no turn until they have met.
struct Wait {
  const Rendezvous* rendezvous = nullptr;
  uint64_t round = 0;

  bool over() const { return rendezvous == nullptr || rendezvous->round != round; }
};

struct Warp {
  Rendezvous rendezvous;
  // Two sets: a lane may bring its next words before another has looked at the last ones.
  std::array<HostGrid::WarpWords, 2> words;
  std::array<HostGrid::TileNumbers, 2> numbers;
};

// A copy that a thread has begun.
struct Copy {
  std::byte* shared;
  const std::byte* source;
  size_t bytes;
  // The bytes that lay there, of a copy that was begun before the launches before were done.
  bool is_early;
  std::array<std::byte, 16> seen;
};

// A thread's copies: in the order in which they were begun, and where each closed group of them
// ends.
struct Copies {
  std::vector<Copy> begun;
  std::vector<size_t> ends;
  size_t groups_done = 0;
  size_t done = 0;

  bool go_on() const { return done < begun.size(); }
  void clear() {
    begun.clear();
    ends.clear();
    groups_done = done = 0;
  }
};

struct Thread {
  Wait wait;
  bool has_waited = false;  // for the launches before
  bool has_ended = false;
};

// Runs one thread of the grid after another: it is begun once, and waits for the next when one has
// ended.
struct Fibre {
  // The stacks of a warp's lanes begin at different places of a page: else all are in the same few
  // lines of the first cache.
  explicit Fibre(size_t number) : color(number * 640 % kPageBytes) {}

  static constexpr size_t kPageBytes = 4096;
  size_t color;
  std::unique_ptr<std::byte[]> stack =
      std::make_unique_for_overwrite<std::byte[]>(kStackBytes + kPageBytes);
  std::byte* top = nullptr;  // the stack's end while another runs; null: not begun
  Copies copies;             // of the thread that it runs
};

// Kept from one grid to the next: to have them anew takes longer than most kernels.
thread_local std::vector<std::unique_ptr<Fibre>> spare_fibres;
thread_local size_t fibre_count = 0;

std::unique_ptr<Fibre> take_fibre() {
  if (spare_fibres.empty()) return std::make_unique<Fibre>(fibre_count++);
  std::unique_ptr<Fibre> fibre = std::move(spare_fibres.back());
  spare_fibres.pop_back();
  return fibre;
}

}  // namespace

struct HostBlock {
  HostGrid::Shape shape;
  std::function<void()> kernel;
  std::vector<unsigned> order;  // in which the blocks run
  unsigned column = 0;
  unsigned row = 0;
  std::unique_ptr<std::byte[]> shared;
  std::byte* shared_begin = nullptr;
  std::vector<std::unique_ptr<Fibre>> fibres;  // by thread
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Rendezvous rendezvous;
  Rendezvous launches;    // those before are done
  bool is_early = false;  // they are not
  bool lets_next = false;
  std::byte* caller_top = nullptr;  // the stack of who runs the grid
  unsigned thread = 0;              // that runs, or whose turn is looked for
  unsigned running = 0;
  bool moved = false;  // since the last sweep over the threads
};

namespace {

thread_local HostBlock* block = nullptr;
thread_local HostGrid::Order block_order = HostGrid::Order::kForward;
thread_local bool group_products = true;
thread_local std::mt19937 random;

Thread& own_thread() {
  return block->threads[block->thread];
}

Copies& own_copies() {
  return block->fibres[block->thread]->copies;
}

// Goes over the threads from block->thread on to the next one that has a turn: again from the first
// as long as any of them moves. False where all have ended or wait.
bool find_turn() {
  HostBlock& grid = *block;
  for (;;) {
    for (; grid.thread < grid.shape.threads; ++grid.thread) {
      const Thread& next = grid.threads[grid.thread];
      if (!next.has_ended && next.wait.over()) return true;
    }
    // A thread that rests, or has met others, has moved.
    if (!grid.moved) return false;
    grid.moved = false;
    grid.thread = 0;
  }
}

// Lets the next thread have its turn: straight from stack to stack.
void yield() {
  Fibre& own = *block->fibres[block->thread++];
  if (!find_turn()) return lockstep_switch_stacks(&own.top, block->caller_top);
  const Fibre& next = *block->fibres[block->thread];
  if (&next != &own) lockstep_switch_stacks(&own.top, next.top);
}

void meet(Rendezvous& rendezvous, unsigned count) {
  const uint64_t round = rendezvous.round;
  block->moved = true;
  if (++rendezvous.arrived == count) {
    rendezvous.arrived = 0;
    ++rendezvous.round;
    return;
  }
  own_thread().wait = {&rendezvous, round};
  yield();
}

Warp& own_warp() {
  return block->warps[block->thread / kWarpThreads];
}

void check_aligned(const void* address, size_t bytes) {
  CHECK(reinterpret_cast<uintptr_t>(address) % bytes == 0, "{} is not aligned to {} bytes", address,
        bytes);
}

void run_thread() {
  block->kernel();
  Thread& own = own_thread();
  CHECK(own.has_waited, "thread {} of block {}, {} ends without having waited for launches",
        block->thread, block->column, block->row);
  CHECK(!own_copies().go_on(), "thread {} of block {}, {} ends while its copies go on",
        block->thread, block->column, block->row);
  own.has_ended = true;
  --block->running;
  block->moved = true;
}

void run_threads() {
  for (;;) {
    run_thread();
    yield();
  }
}

// Its first turn enters run_threads(), as a call would: with the stack eight bytes off a multiple
// of 16.
void prepare_fibre(Fibre& fibre) {
  if (fibre.top != nullptr) return;
  struct First {
    std::array<void*, 6> preserved = {};
    void (*entry)() = &run_threads;
    void* returns_to = nullptr;
  };
  std::byte* const end = fibre.stack.get() + kStackBytes + fibre.color;
  fibre.top = end - reinterpret_cast<uintptr_t>(end) % 16 - sizeof(First);
  new (fibre.top) First;
}

void begin_block(unsigned index) {
  block->column = index % block->shape.columns;
  block->row = index / block->shape.columns;
  const unsigned count = block->shape.threads;
  std::memset(block->shared_begin, kGarbage, block->shape.shared_bytes);
  block->rendezvous = {};
  block->lets_next = false;
  for (Warp& warp : block->warps) warp.rendezvous = {};
  for (unsigned thread = 0; thread < count; ++thread) {
    block->threads[thread] = {};
    block->fibres[thread]->copies.clear();
    prepare_fibre(*block->fibres[thread]);
  }
  block->running = count;
}

// Until all have ended or wait.
void take_turns() {
  block->thread = 0;
  block->moved = false;
  if (find_turn()) lockstep_switch_stacks(&block->caller_top, block->fibres[block->thread]->top);
}

void end_block() {
  take_turns();
  CHECK(block->running == 0, "{} of {} threads wait for others that have ended or wait elsewhere",
        block->running, block->shape.threads);
}

std::vector<unsigned> ordered_blocks(unsigned count) {
  std::vector<unsigned> blocks(count);
  std::iota(blocks.begin(), blocks.end(), 0U);
  if (block_order == HostGrid::Order::kReverse) std::ranges::reverse(blocks);
  if (block_order == HostGrid::Order::kShuffled) std::ranges::shuffle(blocks, random);
  return blocks;
}

}  // namespace

HostGrid::HostGrid(const Shape& shape, std::function<void()> kernel)
    : block_(std::make_unique<HostBlock>()) {
  CHECK(block == nullptr, "a kernel cannot launch another");
  CHECK(shape.threads % kWarpThreads == 0, "{} threads are not whole warps", shape.threads);
  HostBlock& grid = *block_;
  grid.shape = shape;
  grid.order = ordered_blocks(shape.columns * shape.rows);
  grid.kernel = std::move(kernel);
  grid.shared = std::make_unique<std::byte[]>(shape.shared_bytes + 128);
  const auto address = reinterpret_cast<uintptr_t>(grid.shared.get());
  grid.shared_begin = grid.shared.get() + (128 - address % 128);
  for (unsigned thread = 0; thread < shape.threads; ++thread) grid.fibres.push_back(take_fibre());
  grid.threads.resize(shape.threads);
  grid.warps.resize(shape.threads / kWarpThreads);
  grid.is_early = true;
  block = &grid;
  begin_block(grid.order.front());
  take_turns();
  block = nullptr;
}

HostGrid::~HostGrid() {
  for (unsigned thread = 0; thread < block_->shape.threads; ++thread) {
    std::unique_ptr<Fibre>& fibre = block_->fibres[thread];
    // One that is in the middle of a kernel begins anew.
    if (!block_->threads[thread].has_ended) fibre->top = nullptr;
    spare_fibres.push_back(std::move(fibre));
  }
}

void HostGrid::finish() {
  CHECK(block == nullptr && block_->is_early, "a grid is finished twice, or in another");
  HostBlock& grid = *block_;
  block = &grid;
  grid.is_early = false;
  ++grid.launches.round;
  end_block();
  for (const unsigned index : std::span(grid.order).subspan(1)) {
    begin_block(index);
    end_block();
  }
  block = nullptr;
}

void HostGrid::set_order(Order order, uint32_t seed) {
  block_order = order;
  random.seed(seed);
}

void HostGrid::set_group_products(bool has) {
  group_products = has;
}
bool HostGrid::has_group_products() {
  return group_products;
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

void HostGrid::wait_for_launches() {
  own_thread().has_waited = true;
  if (!block->is_early) return;
  block->moved = true;
  own_thread().wait = {&block->launches, block->launches.round};
  yield();
}

void HostGrid::let_next_launch_begin() {
  block->lets_next = true;
}

void HostGrid::meet_block() {
  meet(block->rendezvous, block->shape.threads);
}

void HostGrid::meet_warp() {
  meet(own_warp().rendezvous, kWarpThreads);
}

const HostGrid::WarpWords& HostGrid::exchange(const Words& own) {
  Warp& warp = own_warp();
  WarpWords& words = warp.words[warp.rendezvous.round % 2];
  words[block->thread % kWarpThreads] = own;
  meet(warp.rendezvous, kWarpThreads);
  return words;
}

const HostGrid::TileNumbers& HostGrid::exchange_tiles(const Words& own,
                                                      void (*read)(const WarpWords&,
                                                                   TileNumbers&)) {
  Warp& warp = own_warp();
  const size_t set = warp.rendezvous.round % 2;
  warp.words[set][block->thread % kWarpThreads] = own;
  const bool is_last = warp.rendezvous.arrived + 1 == kWarpThreads;
  if (is_last) read(warp.words[set], warp.numbers[set]);
  meet(warp.rendezvous, kWarpThreads);
  return warp.numbers[set];
}

void HostGrid::begin_copy(std::byte* shared, const std::byte* source, size_t bytes) {
  check_aligned(shared, bytes);
  check_aligned(source, bytes);
  std::memset(shared, kGarbage, bytes);
  Copy copy = {shared, source, bytes, !own_thread().has_waited, {}};
  std::memcpy(copy.seen.data(), source, bytes);
  own_copies().begun.push_back(copy);
}

void HostGrid::close_copies() {
  Copies& copies = own_copies();
  copies.ends.push_back(copies.begun.size());
}

void HostGrid::wait_for_copies(size_t groups) {
  Copies& copies = own_copies();
  while (copies.ends.size() - copies.groups_done > groups) {
    for (const size_t end = copies.ends[copies.groups_done++]; copies.done < end; ++copies.done) {
      const Copy& copy = copies.begun[copies.done];
      CHECK(!copy.is_early || std::memcmp(copy.seen.data(), copy.source, copy.bytes) == 0,
            "{} bytes at {} were copied before a launch before had written them", copy.bytes,
            static_cast<const void*>(copy.source));
      std::memcpy(copy.shared, copy.source, copy.bytes);
    }
  }
  if (copies.groups_done == copies.ends.size() && !copies.go_on()) copies.clear();
}

void HostGrid::rest() {
  block->moved = true;
  yield();
  sched_yield();  // whom it waits for may be run by another thread
}

void HostGrid::check_access(const void* address, size_t bytes) {
  check_aligned(address, bytes);
  const auto* const begin = static_cast<const std::byte*>(address);
  const std::less<> before;
  const bool is_shared = !before(begin, block->shared_begin) &&
                         before(begin, block->shared_begin + block->shape.shared_bytes);
  CHECK(is_shared || own_thread().has_waited,
        "{} bytes at {} are used before the launches before are waited for", bytes, address);
}

void HostGrid::check_flag() {
  CHECK(!block->lets_next, "a kernel that has let the next launch begin waits for another GPU");
}

}  // namespace lockstep
