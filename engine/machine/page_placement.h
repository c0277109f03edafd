// The places and sizes of pages: what the kernel says, not what was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "engine/base/result.h"

namespace lockstep {

class MemoryCalls;

struct Placement {
  std::map<int, uint64_t> bytes_on_node;  // by the node's number
  uint64_t wrong_bytes = 0;               // on another node than they should be
  uint64_t absent_bytes = 0;              // not in memory: never touched, or swapped out
};

// Asks for every page of `memory`, which should lie on `node` (-1: anywhere). Exact for any memory
// where move_pages may be asked; where it may not (a container), for whole mappings such as an
// arena's. Fails with kMachineRefused where the kernel does not say. `calls`: the system's if null.
Result<Placement> examine_placement(std::span<const std::byte> memory, int node,
                                    MemoryCalls* calls = nullptr);

struct PageSizes {
  uint64_t resident_bytes = 0;  // in memory, in pages of any size
  uint64_t huge_bytes = 0;      // in pages of 2 MiB or more, of the pools or transparent
};

// Exact for whole mappings such as an arena's; of a part of one, at most these. None where the
// kernel does not say. Of memory that is not bound a kernel 6.1 was seen to leave pages out for a
// moment, probably while kernel.numa_balancing looked which node uses them.
std::optional<PageSizes> read_page_sizes(std::span<const std::byte> memory);

// Its huge_bytes alone.
std::optional<uint64_t> huge_bytes(std::span<const std::byte> memory);

}  // namespace lockstep
