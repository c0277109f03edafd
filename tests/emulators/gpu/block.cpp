#include "tests/emulators/gpu/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/emulators/gpu/block_shared.h"
#include "tests/emulators/gpu/program.h"
#include "tests/emulators/gpu/syntax.h"
#include "tests/emulators/gpu/warp.h"

namespace lockstep::ptx {
namespace {

struct FreeBytes {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
};

}  // namespace

struct Block::State {
  State(const Launch& launch, Size3 index, Memory& memory, uint64_t seed);

  void fill_registers(uint32_t warp);
  uint32_t special_value(Special special, uint32_t thread) const;
  Warp* pick();
  BlockState when_none_is_ready();
  bool pass_barrier();

  Random random;
  BlockShared shared;
  std::unique_ptr<std::byte[], FreeBytes> registers;
  std::vector<Warp> warps;
  std::vector<uint32_t> ready;
  uint64_t run = 0;
};

Block::State::State(const Launch& launch, Size3 index, Memory& memory, uint64_t seed)
    : random(seed), shared(launch, index, memory, random()) {
  const Size3 its = launch.block;
  const Program& program = shared.program;
  const uint64_t threads = uint64_t{its.x} * its.y * its.z;
  if (threads == 0 || threads > program.threads_max ||
      launch.parameters.size() != program.parameter_bytes) {
    shared.failure = fmt::format(
        "{}: launched with {} threads of at most {}, and {} bytes of parameters instead of {}",
        program.name, threads, program.threads_max, launch.parameters.size(),
        program.parameter_bytes);
    return;
  }
  const auto count = static_cast<uint32_t>((threads + kLanes - 1) / kLanes);
  registers.reset(static_cast<std::byte*>(
      ::operator new[](size_t{program.register_file_bytes} * count, std::align_val_t{64})));
  warps.reserve(count);
  for (uint32_t w = 0; w < count; ++w) {
    const uint64_t lanes = std::min<uint64_t>(kLanes, threads - uint64_t{w} * kLanes);
    warps.emplace_back(shared, w, static_cast<uint32_t>((uint64_t{1} << lanes) - 1),
                       registers.get() + size_t{w} * program.register_file_bytes);
    fill_registers(w);
  }
}

void Block::State::fill_registers(uint32_t warp) {
  const Program& program = shared.program;
  std::byte* const file = registers.get() + size_t{warp} * program.register_file_bytes;
  std::copy(program.constants.begin(), program.constants.end(), file);
  // Predicates of all lanes are read, even of lanes that do not take part, so none may be unset.
  for (const uint32_t place : program.predicates) std::memset(file + place, 0, kLanes);
  for (const auto& [place, bytes] : program.read_first) {
    fill_with_anything({file + place, bytes}, random());
    if (bytes != kLanes) continue;
    for (uint32_t lane = 0; lane < kLanes; ++lane) file[place + lane] &= std::byte{1};
  }
  for (const SpecialRegister& its : program.specials) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t value = special_value(its.special, warp * kLanes + lane);
      std::memcpy(file + its.place + lane * sizeof(value), &value, sizeof(value));
    }
  }
}

uint32_t Block::State::special_value(Special special, uint32_t thread) const {
  const Size3 threads = shared.launch.block;
  const Size3 blocks = shared.launch.grid;
  switch (special) {
    case Special::kThreadX:
      return thread % threads.x;
    case Special::kThreadY:
      return thread / threads.x % threads.y;
    case Special::kThreadZ:
      return thread / threads.x / threads.y;
    case Special::kLane:
      return thread % kLanes;
    case Special::kThreadsX:
      return threads.x;
    case Special::kThreadsY:
      return threads.y;
    case Special::kThreadsZ:
      return threads.z;
    case Special::kBlockX:
      return shared.index.x;
    case Special::kBlockY:
      return shared.index.y;
    case Special::kBlockZ:
      return shared.index.z;
    case Special::kBlocksX:
      return blocks.x;
    case Special::kBlocksY:
      return blocks.y;
    case Special::kBlocksZ:
      return blocks.z;
  }
  return 0;
}

// One of the warps that can run, or null.
Warp* Block::State::pick() {
  ready.clear();
  for (const Warp& warp : warps) {
    if (warp.state() == WarpState::kReady) ready.push_back(warp.index());
  }
  return ready.empty() ? nullptr : &warps[ready[random.below(ready.size())]];
}

// Lets the warps go on that wait at the barrier, if all do that live.
bool Block::State::pass_barrier() {
  Warp* first = nullptr;
  for (Warp& warp : warps) {
    if (warp.state() == WarpState::kDone) continue;
    if (warp.state() != WarpState::kAtBarrier) return false;
    if (first == nullptr) first = &warp;
    if (warp.at() != first->at()) {
      const auto& instructions = shared.program.instructions;
      const Instruction& other = instructions[first->at() - 1];
      warp.fail(instructions[warp.at() - 1], 0,
                fmt::format("warp {} waits at another barrier, {}", first->index(),
                            place_in_text(*shared.program.text, other.offset)));
      return true;
    }
  }
  if (shared.touches) shared.touches->pass_barrier();
  for (Warp& warp : warps) {
    if (warp.state() == WarpState::kAtBarrier) warp.go_on();
  }
  return first != nullptr;
}

BlockState Block::State::when_none_is_ready() {
  const auto any = [&](WarpState state) {
    return std::any_of(warps.begin(), warps.end(),
                       [&](const Warp& warp) { return warp.state() == state; });
  };
  if (any(WarpState::kRests)) return BlockState::kRests;
  if (any(WarpState::kWaitsForLaunch)) return BlockState::kWaitsForLaunch;
  shared.lets_next_begin = true;
  return BlockState::kDone;
}

Block::Block(const Launch& launch, Size3 index, Memory& memory, uint64_t seed)
    : state_(std::make_unique<State>(launch, index, memory, seed)) {}
Block::Block(Block&&) noexcept = default;
Block& Block::operator=(Block&&) noexcept = default;
Block::~Block() = default;

BlockState Block::run(uint64_t warp_instructions, bool launch_before_is_done) {
  State& state = *state_;
  state.shared.launch_before_is_done = launch_before_is_done;
  for (Warp& warp : state.warps) {
    if (warp.state() == WarpState::kRests ||
        (warp.state() == WarpState::kWaitsForLaunch && launch_before_is_done)) {
      warp.go_on();
    }
  }
  // How long a warp runs before another may: short turns find more orders, long ones cost less.
  constexpr uint64_t kShortest = 16;
  constexpr uint64_t kLongest = 1024;
  for (uint64_t left = warp_instructions; state.shared.failure.empty();) {
    if (left == 0) return BlockState::kGoesOn;
    Warp* const warp = state.pick();
    if (warp == nullptr) {
      if (!state.pass_barrier()) return state.when_none_is_ready();
      continue;
    }
    const uint64_t turn = kShortest + state.random.below(kLongest - kShortest);
    const uint64_t done = warp->run(std::min(left, turn));
    state.run += done;
    left -= std::min(left, done);
  }
  return BlockState::kFailed;
}

bool Block::lets_next_begin() const {
  return state_->shared.lets_next_begin;
}

uint64_t Block::warp_instructions() const {
  return state_->run;
}

const std::string& Block::failure() const {
  return state_->shared.failure;
}

Fault Block::fault() const {
  return state_->shared.fault;
}

}  // namespace lockstep::ptx
