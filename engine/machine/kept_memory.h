// Memory that outlives its process: memfds that somebody keeps, and how they are known again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/descriptor.h"
#include "engine/base/result.h"

namespace lockstep {

struct MemfdFacts {
  uint64_t inode = 0;
  uint64_t bytes = 0;
  uint64_t huge_page_bytes = 0;  // of the pool that its pages are of; 0: of none
  bool sealed = false;           // nobody can write to it or make it grow
};

// None for a descriptor that is not a memfd.
std::optional<MemfdFacts> examine_memfd(int descriptor);

// A digest of some samples, evenly spread, of the memfd's first `bytes`: enough to tell one
// model's weights from another's, in well below a millisecond. Fails with kMachineRefused.
Result<std::string> sample_digest(int descriptor, uint64_t bytes);

// Frees the memory, even if others have the descriptor. Mappings of it may not be touched again.
void free_memfd(int descriptor);

// A sealed memfd that holds `text`, and its text again. Fail with kMachineRefused; reading also
// when it holds more than `bytes_max`, or is not sealed.
Result<Descriptor> make_sealed_text(const char* name, std::string_view text);
Result<std::string> read_sealed_text(int descriptor, uint64_t bytes_max);

}  // namespace lockstep
