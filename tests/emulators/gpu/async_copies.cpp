#include "tests/emulators/gpu/async_copies.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "tests/emulators/gpu/access.h"
#include "tests/emulators/gpu/block_shared.h"
#include "tests/emulators/gpu/warp.h"

namespace lockstep::ptx {

void AsyncCopies::add(uint32_t lanes, uint32_t bytes, const HostAddresses& target,
                      const HostAddresses& source) {
  copies_.push_back({lanes, bytes, committed_, target, source});
}

void AsyncCopies::commit(uint32_t lanes) {
  for (; lanes != 0; lanes &= lanes - 1) ++committed_[static_cast<size_t>(std::countr_zero(lanes))];
}

const char* AsyncCopies::wait(uint32_t lanes, uint32_t groups, Window& shared,
                              SharedTouches* touches, uint32_t warp) {
  const char* race = nullptr;
  for (Copy& copy : copies_) {
    for (uint32_t left = copy.lanes & lanes; left != 0; left &= left - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(left));
      if (copy.group[lane] + groups >= committed_[lane]) continue;
      std::memcpy(copy.target[lane], copy.source[lane], copy.bytes);
      const size_t place = shared.offset_of(copy.target[lane]);
      shared.set_written(place, copy.bytes, Written::kYes);
      if (touches != nullptr && race == nullptr) race = touches->write(place, copy.bytes, warp);
      copy.lanes &= ~(left & (0 - left));
    }
  }
  std::erase_if(copies_, [](const Copy& copy) { return copy.lanes == 0; });
  return race;
}

template <uint32_t kBytes>
void copy_later(Warp& warp, const Instruction& instruction) {
  const auto target_offset = static_cast<int32_t>(instruction.immediate >> 32);
  const auto source_offset = static_cast<int32_t>(instruction.immediate);
  HostAddresses target;
  HostAddresses source;
  if (GlobalSpace::find(warp, instruction, instruction.registers[1],
                        static_cast<uint64_t>(int64_t{source_offset}), kBytes, Touch::kRead,
                        source) &&
      SharedSpace::find(warp, instruction, instruction.registers[0],
                        static_cast<uint64_t>(int64_t{target_offset}), kBytes, Touch::kPromise,
                        target)) {
    warp.copies().add(warp.active(), kBytes, target, source);
  }
}
template void copy_later<4>(Warp&, const Instruction&);
template void copy_later<8>(Warp&, const Instruction&);
template void copy_later<16>(Warp&, const Instruction&);

void commit_copies(Warp& warp, const Instruction&) {
  warp.copies().commit(warp.active());
}

void wait_for_copies(Warp& warp, const Instruction& instruction) {
  auto& touches = warp.block().touches;
  const char* const race =
      warp.copies().wait(warp.active(), static_cast<uint32_t>(instruction.immediate),
                         warp.block().shared, touches ? &*touches : nullptr, warp.index());
  if (race == nullptr) return;
  warp.fail(
      instruction, static_cast<uint32_t>(std::countr_zero(warp.active())),
      fmt::format("copies to shared memory that another warp has {} since the last barrier", race));
}

}  // namespace lockstep::ptx
