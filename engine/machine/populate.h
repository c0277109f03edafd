// The first touch of memory, by those who are to use it.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep {

class MemoryCalls;
class Workers;

// Gives every page of fresh, zeroed `memory` a place, in slices that the workers take one after
// another (without workers: on the calling thread). `page_bytes`: of its pages; the memory is whole
// pages. Returns 0 or an error number; then some pages may have places and some not.
int populate(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes, Workers* workers);

// The same for a part of memory that may have been written to: what is there stays. A kernel before
// 5.14 does nothing; there the pages get their places when they are written to.
int populate_part(MemoryCalls& calls, std::span<std::byte> part);

}  // namespace lockstep
