#include "tests/emulators/gpu/addresses.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <type_traits>

#include "tests/emulators/gpu/block_shared.h"
#include "tests/emulators/gpu/warp.h"

namespace lockstep::ptx {
namespace {

const char* verb(Touch touch) {
  return touch == Touch::kRead ? "reads" : "writes";
}

bool refuse(Warp& warp, const Instruction& instruction, uint32_t lane, uint64_t address,
            uint32_t bytes, Touch touch, std::string_view why, Fault fault = Fault::kOther) {
  warp.fail(instruction, lane,
            fmt::format("{} {} bytes at {:#x}, {}", verb(touch), bytes, address, why), fault);
  return false;
}

uint32_t first_lane(const Warp& warp) {
  return static_cast<uint32_t>(std::countr_zero(warp.active()));
}

// The lanes' addresses; lanes that are not active get that of one which is. Between `lowest` and
// `highest` lie all of them; `bits` are those that are set in any.
template <typename Address>
struct Addresses {
  Addresses(Warp& warp, uint32_t address_register, uint64_t offset, uint32_t bytes) {
    const Address* const from = warp.lanes<const Address>(address_register);
    const Address shift = static_cast<Address>(offset);
#pragma GCC ivdep
    for (uint32_t lane = 0; lane < kLanes; ++lane) at[lane] = from[lane] + shift;
    const uint32_t active = warp.active();
    if (active != kAllLanes) {
      const Address spare = at[first_lane(warp)];
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        at[lane] = (active >> lane) & 1 ? at[lane] : spare;
      }
    }
    // The host compares vectors of 64 bits with their signs. Where some addresses have the highest
    // bit and others not, `lowest` is above `highest`.
    using Order = std::conditional_t<sizeof(Address) == 8, int64_t, Address>;
    Order low = static_cast<Order>(at[0]);
    Order high = low;
    Address set = 0;
    Address apart = 0;
    const Address first = at[0];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      low = std::min(low, static_cast<Order>(at[lane]));
      high = std::max(high, static_cast<Order>(at[lane]));
      set |= at[lane];
      apart |= at[lane] ^ (first + lane * Address{bytes});
    }
    bits = set;
    lowest = static_cast<Address>(low);
    highest = static_cast<Address>(high);
    in_a_row = apart == 0;
  }

  uint32_t lane_of(Address address) const {
    return static_cast<uint32_t>(std::find(at.begin(), at.end(), address) - at.begin());
  }
  uint32_t misaligned_lane(uint32_t bytes) const {
    const auto found =
        std::find_if(at.begin(), at.end(), [&](Address address) { return address % bytes != 0; });
    return static_cast<uint32_t>(found - at.begin());
  }
  // Finds the lanes' places in the host's memory, where `begin` lies at `base`.
  void put_into(HostAddresses& host, std::byte* base, uint64_t begin) const {
    const uint64_t moved = reinterpret_cast<uint64_t>(base) - begin;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      host[lane] = reinterpret_cast<std::byte*>(moved + at[lane]);
    }
    host.in_a_row = in_a_row;
  }

  alignas(64) std::array<Address, kLanes> at;
  Address lowest = 0;
  Address highest = 0;
  Address bits = 0;
  bool in_a_row = false;
};

// Some lane reads shared memory that nobody has written: a failure, or not.
bool may_read_unwritten(Warp& warp, const Instruction& instruction,
                        const std::array<uint32_t, kLanes>& addresses, uint32_t bytes) {
  const Window& window = warp.block().shared;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t place = addresses[lane] - kSharedBase;
    const bool early = window.has_promised(place, bytes);
    const bool refused = warp.block().launch.refuses_unwritten_shared;
    if (!early && (!refused || window.is_written(place, bytes))) continue;
    return refuse(warp, instruction, lane, addresses[lane], bytes, Touch::kRead,
                  early ? "shared memory that a cp.async has yet to write"
                        : "shared memory that nobody has written");
  }
  return true;
}

// Whether no other warp does something with these bytes that has to come before or after; where
// that is to be found.
bool find_no_race(Warp& warp, const Instruction& instruction, const Addresses<uint32_t>& addresses,
                  uint32_t bytes, Touch touch) {
  auto& touches = warp.block().touches;
  if (!touches) return true;
  const auto touch_bytes = [&](uint32_t place, uint32_t count) {
    return touch == Touch::kRead ? touches->read(place, count, warp.index())
                                 : touches->write(place, count, warp.index());
  };
  if (addresses.in_a_row && touch_bytes(addresses.at[0] - kSharedBase, bytes * kLanes) == nullptr) {
    return true;
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!((warp.active() >> lane) & 1)) continue;
    const char* const done = touch_bytes(addresses.at[lane] - kSharedBase, bytes);
    if (done == nullptr) continue;
    return refuse(
        warp, instruction, lane, addresses.at[lane], bytes, touch,
        fmt::format("shared memory that another warp has {} since the last barrier", done));
  }
  return true;
}

}  // namespace

MemoryRange BlockShared::find_range(uint64_t first, uint64_t last) {
  const auto begin = reinterpret_cast<uint64_t>(program.variables->data());
  MemoryRange found{begin, begin + program.variables->size(),
                    const_cast<std::byte*>(program.variables->data())};
  if (first < found.begin || last >= found.end) found = memory.find(first);
  if (first < found.begin || last >= found.end) return {};
  ranges[next_range] = found;
  next_range = (next_range + 1) % ranges.size();
  return found;
}

bool GlobalSpace::find(Warp& warp, const Instruction& instruction, uint32_t address_register,
                       uint64_t offset, uint32_t bytes, Touch touch, HostAddresses& host) {
  const Addresses<uint64_t> addresses(warp, address_register, offset, bytes);
  if ((addresses.bits & (bytes - 1)) != 0) {
    const uint32_t lane = addresses.misaligned_lane(bytes);
    return refuse(warp, instruction, lane, addresses.at[lane], bytes, touch, "which is misaligned",
                  Fault::kMisaligned);
  }
  BlockShared& block = warp.block();
  // Most often all lanes are within one allocation.
  MemoryRange range;
  if (addresses.lowest <= addresses.highest) {
    range = block.range_of(addresses.lowest, addresses.highest + bytes - 1);
  }
  if (range.host != nullptr) {
    addresses.put_into(host, range.host, range.begin);
  } else {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t address = addresses.at[lane];
      range = block.range_of(address, address + bytes - 1);
      if (range.host == nullptr) {
        return refuse(warp, instruction, lane, address, bytes, touch,
                      "where this GPU has no memory", Fault::kNoMemory);
      }
      host[lane] = range.host + (address - range.begin);
    }
  }
  if (touch != Touch::kRead && range.host == block.program.variables->data()) {
    return refuse(warp, instruction, first_lane(warp), addresses.at[0], bytes, touch,
                  "a constant of the module");
  }
  return true;
}

bool SharedSpace::find(Warp& warp, const Instruction& instruction, uint32_t address_register,
                       uint64_t offset, uint32_t bytes, Touch touch, HostAddresses& host) {
  const Addresses<uint32_t> addresses(warp, address_register, offset, bytes);
  Window& window = warp.block().shared;
  if ((addresses.bits & (bytes - 1)) != 0) {
    const uint32_t lane = addresses.misaligned_lane(bytes);
    return refuse(warp, instruction, lane, addresses.at[lane], bytes, touch,
                  "misaligned in shared memory", Fault::kMisaligned);
  }
  const uint64_t end = kSharedBase + window.size();
  if (addresses.lowest < kSharedBase || uint64_t{addresses.highest} + bytes > end) {
    const bool below = addresses.lowest < kSharedBase;
    const uint32_t lane = addresses.lane_of(below ? addresses.lowest : addresses.highest);
    return refuse(
        warp, instruction, lane, addresses.at[lane], bytes, touch,
        fmt::format("outside of shared memory, which is {:#x} to {:#x}", kSharedBase, end),
        Fault::kNoMemory);
  }
  if (!find_no_race(warp, instruction, addresses, bytes, touch)) return false;
  addresses.put_into(host, window.at(0), kSharedBase);
  // Lanes in a row are looked at as if they were one.
  const uint32_t lanes = addresses.in_a_row ? 1 : kLanes;
  const uint32_t lane_bytes = addresses.in_a_row ? bytes * kLanes : bytes;
  if (touch != Touch::kRead) {
    const Written how = touch == Touch::kWrite ? Written::kYes : Written::kPromised;
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      window.set_written(addresses.at[lane] - kSharedBase, lane_bytes, how);
    }
    return true;
  }
  bool all_written = true;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    all_written &= window.is_written(addresses.at[lane] - kSharedBase, lane_bytes);
  }
  return all_written || may_read_unwritten(warp, instruction, addresses.at, bytes);
}

bool LocalSpace::find(Warp& warp, const Instruction& instruction, uint32_t address_register,
                      uint64_t offset, uint32_t bytes, Touch touch, HostAddresses& host) {
  const Addresses<uint64_t> addresses(warp, address_register, offset, bytes);
  Window& window = warp.block().local;
  const uint64_t thread_bytes = warp.block().program.local_bytes;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!((warp.active() >> lane) & 1)) continue;
    const uint64_t address = addresses.at[lane];
    if ((address & (bytes - 1)) != 0) {
      return refuse(warp, instruction, lane, address, bytes, touch, "misaligned in local memory",
                    Fault::kMisaligned);
    }
    if (address < kLocalBase || address + bytes > kLocalBase + thread_bytes) {
      return refuse(warp, instruction, lane, address, bytes, touch, "outside of local memory",
                    Fault::kNoMemory);
    }
    const uint64_t thread = uint64_t{warp.index()} * kLanes + lane;
    const uint64_t place = thread * thread_bytes + (address - kLocalBase);
    host[lane] = window.at(place);
    if (touch == Touch::kWrite) {
      window.set_written(place, bytes, Written::kYes);
    } else if (!window.is_written(place, bytes)) {
      return refuse(warp, instruction, lane, address, bytes, touch,
                    "local memory that its thread has not written");
    }
  }
  return true;
}

bool ParameterSpace::find(Warp& warp, const Instruction& instruction, uint32_t address_register,
                          uint64_t offset, uint32_t bytes, Touch touch, HostAddresses& host) {
  const Addresses<uint64_t> addresses(warp, address_register, offset, bytes);
  const std::vector<std::byte>& parameters = warp.block().launch.parameters;
  const auto is_outside = [&](uint64_t address) {
    return address > parameters.size() || bytes > parameters.size() - address;
  };
  const bool all_aligned = (addresses.bits & (bytes - 1)) == 0;
  if (!all_aligned || addresses.lowest > addresses.highest || is_outside(addresses.highest)) {
    const auto found = std::ranges::find_if(addresses.at, [&](uint64_t address) {
      return (address & (bytes - 1)) != 0 || is_outside(address);
    });
    const auto lane = static_cast<uint32_t>(found - addresses.at.begin());
    return refuse(warp, instruction, lane, *found, bytes, touch,
                  "misaligned in the parameters, or outside of them", Fault::kNoMemory);
  }
  // Only read: stores to parameters are no instruction that is known.
  addresses.put_into(host, const_cast<std::byte*>(parameters.data()), 0);
  return true;
}

}  // namespace lockstep::ptx
