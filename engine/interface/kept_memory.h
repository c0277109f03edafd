// The engine's memory that outlives the process, and how it is handed over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/descriptor.h"

namespace lockstep {

// Whether weights and KV cache lie so that the next process can take them over.
enum class MemoryKeeping : uint8_t {
  kNo,
  kWhereHuge,  // in memfds where these are given huge pages
  kAlways,     // in memfds of small pages where there are no others
};

// A memfd that outlives the process, under the name by which it is kept: lockstep-weights,
// lockstep-weights-0, lockstep-kv-0 ...
struct KeptDescriptor {
  std::string name;
  Descriptor descriptor;
};

// The memory to keep for the next process; the engine owns the descriptors.
struct MemoryToKeep {
  struct Entry {
    std::string name;
    int descriptor = -1;
  };
  std::vector<Entry> entries;    // none: nothing can be kept, the log says why
  bool is_kept_already = false;  // it is what this process was given, all of it
};

}  // namespace lockstep
