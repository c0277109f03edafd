#include "tests/emulators/gpu/warp.h"

#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/emulators/gpu/block_shared.h"
#include "tests/emulators/gpu/syntax.h"

namespace lockstep::ptx {
namespace {

// Restores `before` in the lanes of `result` that are not active.
template <typename T>
void keep_inactive(T* result, const T* before, uint32_t active) {
#pragma GCC ivdep
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    result[lane] = (active >> lane) & 1 ? result[lane] : before[lane];
  }
}

}  // namespace

Warp::Warp(BlockShared& block, uint32_t index, uint32_t lanes, std::byte* registers)
    : block_(block), registers_(registers), index_(index), live_(lanes), active_(lanes) {}

uint32_t Warp::bits(uint32_t place) {
  const __m256i bytes = _mm256_load_si256(lanes<const __m256i>(place));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(bytes, 7)));
}

uint64_t Warp::run(uint64_t instructions) {
  const Instruction* const code = block_.program.instructions.data();
  uint64_t left = instructions;
  while (state_ == WarpState::kReady && left > 0) {
    interrupted_ = false;
    if (active_ == kAllLanes && groups_.empty()) {
      do {
        const Instruction& instruction = code[at_++];
        instruction.run(*this, instruction);
        --left;
      } while (left > 0 && !interrupted_);
    } else {
      regroup();
      if (state_ != WarpState::kReady) break;
      run_masked(code[at_++]);
      --left;
    }
  }
  return instructions - left;
}

void Warp::run_masked(const Instruction& instruction) {
  const uint32_t bytes = instruction.pure_lane_bytes * kLanes;
  if (bytes == 0) return instruction.run(*this, instruction);
  alignas(64) std::byte before[8 * kLanes];
  std::byte* const result = lanes<std::byte>(instruction.registers[0]);
  std::memcpy(before, result, bytes);
  instruction.run(*this, instruction);
  const auto keep = [&]<typename T>(T* now) {
    keep_inactive(now, reinterpret_cast<const T*>(before), active_);
  };
  switch (instruction.pure_lane_bytes) {
    case 1:
      return keep(reinterpret_cast<uint8_t*>(result));
    case 2:
      return keep(reinterpret_cast<uint16_t*>(result));
    case 4:
      return keep(reinterpret_cast<uint32_t*>(result));
    default:
      return keep(reinterpret_cast<uint64_t*>(result));
  }
}

// Those that are furthest behind run, together with all that are where they are.
void Warp::regroup() {
  if (groups_.empty() && active_ != 0) return;
  const LaneGroup* next = nullptr;
  bool meets = false;
  for (const LaneGroup& group : groups_) {
    if (group.wait == LaneWait::kNone && (next == nullptr || group.at < next->at)) next = &group;
    meets = meets || group.at == at_;
  }
  const bool stays = active_ != 0 && (next == nullptr || next->at >= at_);
  if (stays && !meets) return;
  if (!stays) {
    if (next == nullptr) return all_wait();
    const uint32_t at = next->at;
    if (active_ != 0) groups_.push_back({active_, at_});
    active_ = 0;
    at_ = at;
  }
  std::erase_if(groups_, [&](const LaneGroup& group) {
    if (group.at == at_) active_ |= group.lanes;
    return group.at == at_;
  });
}

void Warp::all_wait() {
  if (groups_.empty()) {
    state_ = WarpState::kDone;
    return;
  }
  for (const LaneGroup& group : groups_) {
    if (group.wait == LaneWait::kLaunch) {
      state_ = WarpState::kWaitsForLaunch;
      return;
    }
  }
  const Program& program = block_.program;
  std::string places;
  for (const LaneGroup& group : groups_) {
    places += fmt::format("{}lanes {:#010x} wait at {}", places.empty() ? "" : "; ", group.lanes,
                          place_in_text(*program.text, program.instructions[group.at].offset));
  }
  fail(program.instructions[groups_[0].at],
       static_cast<uint32_t>(std::countr_zero(groups_[0].lanes)),
       "not all lanes that have to meet can come here: " + places);
}

void Warp::split(uint32_t taken, uint32_t target) {
  groups_.push_back({taken, target});
  active_ &= ~taken;
  interrupted_ = true;
}

void Warp::end_lanes() {
  live_ &= ~active_;
  active_ = 0;
  interrupted_ = true;
  // Those who waited for lanes that ended look again.
  for (LaneGroup& group : groups_) {
    if (group.wait == LaneWait::kOthers) group.wait = LaneWait::kNone;
  }
}

void Warp::park(LaneWait wait) {
  groups_.push_back({active_, at_ - 1, wait});
  active_ = 0;
  interrupted_ = true;
}

bool Warp::gathered(uint32_t wanted, const Instruction& instruction) {
  const uint32_t strangers = active_ & ~wanted;
  if (strangers != 0) {
    fail(instruction, static_cast<uint32_t>(std::countr_zero(strangers)),
         fmt::format("the lane is not in its own mask {:#010x}", wanted));
    return false;
  }
  const uint32_t ended = wanted & ~live_;
  if (ended != 0) {
    fail(instruction, static_cast<uint32_t>(std::countr_zero(active_)),
         fmt::format("of the lanes {:#010x} that it waits for, {:#010x} are none or have ended",
                     wanted, ended));
    return false;
  }
  if (active_ == wanted) return true;
  park(LaneWait::kOthers);
  return false;
}

void Warp::wait_for_launch() {
  park(LaneWait::kLaunch);
}

void Warp::stop(WarpState state) {
  state_ = state;
  interrupted_ = true;
}

void Warp::go_on() {
  if (state_ == WarpState::kWaitsForLaunch) {
    for (LaneGroup& group : groups_) group.wait = LaneWait::kNone;
  }
  state_ = WarpState::kReady;
}

void Warp::fail(const Instruction& instruction, uint32_t lane, const std::string& what,
                Fault fault) {
  if (state_ == WarpState::kFailed) return;
  stop(WarpState::kFailed);
  const Size3 threads = block_.launch.block;
  const uint32_t thread = index_ * kLanes + lane;
  block_.fault = fault;
  block_.failure =
      fmt::format("{}, {}: thread ({}, {}, {}) of block ({}, {}, {}): {}", block_.program.name,
                  place_in_text(*block_.program.text, instruction.offset), thread % threads.x,
                  thread / threads.x % threads.y, thread / threads.x / threads.y, block_.index.x,
                  block_.index.y, block_.index.z, what);
}

}  // namespace lockstep::ptx
