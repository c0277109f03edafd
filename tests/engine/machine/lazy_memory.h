// Memory for tests that load many small models: small pages, each of which is taken when it is
// first touched. Huge pages would be cleared for nothing, and looking up what they became takes
// longer than such a model's pass.
#pragma once

#include <filesystem>

#include "engine/machine/memory_calls.h"

namespace lockstep::test {

class LazyMemory : public MemoryCalls {
 public:
  // Has no state.
  static LazyMemory& instance() {
    static LazyMemory memory;
    return memory;
  }

  int populate(void* /*address*/, size_t /*bytes*/) override { return 0; }
  // Below it nothing is: no nodes, huge pages or control groups, and no limit of memory.
  std::filesystem::path root() const override { return "/dev/null"; }
};

}  // namespace lockstep::test
