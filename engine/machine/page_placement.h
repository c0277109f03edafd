// Pages: their places and sizes, as the kernel says and not as was asked for, and the first touch
// that gives them their places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "engine/base/result.h"

namespace lockstep {

class MemoryCalls;
class Workers;

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

// The first touch of memory, by the workers that are to use it.
//
// Gives every page of fresh, zeroed `memory` a place, in slices that the workers take one after
// another (without workers: on the calling thread). `page_bytes`: of its pages; the memory is whole
// pages. Returns 0 or an error number; then some pages may have places and some not.
int populate(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes, Workers* workers);

// The same for memory that holds something, and may be for reading only: its pages get their places
// in this process's tables, and come back from where the kernel had put them aside.
int populate_filled(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes,
                    Workers* workers);

}  // namespace lockstep
