// The first touch of memory, by the workers that are to use it.
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

// The same for memory that holds something, and may be for reading only: its pages get their places
// in this process's tables, and come back from where the kernel had put them aside.
int populate_filled(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes,
                    Workers* workers);

}  // namespace lockstep
