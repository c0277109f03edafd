#include "tests/engine/kernels/cuda/host_grid.h"

#include <sched.h>
#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/check.h"

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
};

// The point from which a thread of the grid, or their scheduler, goes on. A context begins it;
// later switches are jumps between stacks, which need no system calls.
struct Place {
  ucontext_t context = {};
  jmp_buf jump = {};
  bool begun = false;
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

struct Copies {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> closed;
};

struct Thread {
  Wait wait;
  Copies copies;
  bool has_waited = false;  // for the launches before
  bool has_ended = false;
};

// Runs one thread of the grid after another: it is begun once, and waits for the next when one has
// ended.
struct Fibre {
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  Place place;
};

// Kept from one grid to the next: to have them anew takes longer than most kernels.
thread_local std::vector<std::unique_ptr<Fibre>> spare_fibres;

std::unique_ptr<Fibre> take_fibre() {
  if (spare_fibres.empty()) return std::make_unique<Fibre>();
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
  Place scheduler;
  unsigned thread = 0;
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

void go_on(Place& from, Place& to) {
  if (_setjmp(from.jump) != 0) return;
  if (to.begun) _longjmp(to.jump, 1);
  to.begun = true;
  setcontext(&to.context);
}

void yield() {
  go_on(block->fibres[block->thread]->place, block->scheduler);
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

bool copies_go_on(const Copies& copies) {
  if (!copies.open.empty()) return true;
  return std::ranges::any_of(copies.closed, [](const auto& group) { return !group.empty(); });
}

void run_thread() {
  block->kernel();
  Thread& own = own_thread();
  CHECK(own.has_waited, "thread {} of block {}, {} ends without having waited for launches",
        block->thread, block->column, block->row);
  CHECK(!copies_go_on(own.copies), "thread {} of block {}, {} ends while its copies go on",
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

void prepare_fibre(Fibre& fibre) {
  if (fibre.place.begun) return;
  ucontext_t& context = fibre.place.context;
  getcontext(&context);
  context.uc_stack = {.ss_sp = fibre.stack.get(), .ss_flags = 0, .ss_size = kStackBytes};
  context.uc_link = nullptr;
  makecontext(&context, run_threads, 0);
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
    prepare_fibre(*block->fibres[thread]);
  }
  block->running = count;
}

// Until all have ended or wait.
void take_turns() {
  do {
    block->moved = false;
    for (unsigned thread = 0; thread < block->shape.threads; ++thread) {
      Thread& next = block->threads[thread];
      if (next.has_ended || !next.wait.over()) continue;
      block->thread = thread;
      go_on(block->scheduler, block->fibres[thread]->place);
    }
    // A thread that rests, or has met others, has moved.
  } while (block->moved);
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
  grid.scheduler.begun = true;
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
    if (!block_->threads[thread].has_ended) fibre->place.begun = false;
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

void HostGrid::begin_copy(std::byte* shared, const std::byte* source, size_t bytes) {
  check_aligned(shared, bytes);
  check_aligned(source, bytes);
  std::memset(shared, kGarbage, bytes);
  Copy copy = {shared, source, bytes, !own_thread().has_waited, {}};
  std::memcpy(copy.seen.data(), source, bytes);
  own_thread().copies.open.push_back(copy);
}

void HostGrid::close_copies() {
  Copies& copies = own_thread().copies;
  copies.closed.push_back(std::exchange(copies.open, {}));
}

void HostGrid::wait_for_copies(size_t groups) {
  auto& closed = own_thread().copies.closed;
  while (closed.size() > groups) {
    for (const Copy& copy : closed.front()) {
      CHECK(!copy.is_early || std::memcmp(copy.seen.data(), copy.source, copy.bytes) == 0,
            "{} bytes at {} were copied before a launch before had written them", copy.bytes,
            static_cast<const void*>(copy.source));
      std::memcpy(copy.shared, copy.source, copy.bytes);
    }
    closed.pop_front();
  }
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
