// How the machine is set up, beside what it is made of, and what of that costs a daemon speed or
// memory that keeps gigabytes on given nodes and reads all of them for every token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/machine/topology.h"

namespace lockstep {

// A setting that is not there (no such file, or a kernel without the feature) is none or empty.
struct MachineSettings {
  std::optional<int> numa_balancing;          // kernel.numa_balancing
  std::string transparent_huge_pages;         // of anonymous memory: always, madvise or never
  std::string shared_huge_pages;              // of memfds: always, within_size, advise, never ...
  std::optional<uint64_t> memlock_bytes;      // this process's limit; none: unlimited
  std::vector<std::string> governors;         // of the processors' frequencies, each name once
  std::optional<int> overcommit;              // vm.overcommit_memory
  std::optional<uint64_t> commit_left_bytes;  // what may still be mapped where overcommit is 2
  bool in_container = false;
};

// `root` is / or a copy of its shape.
MachineSettings read_machine_settings(const std::filesystem::path& root = "/");

// Its choices of huge pages alone: what is asked for every arena, without a look at every
// processor.
MachineSettings read_huge_page_settings(const std::filesystem::path& root = "/");

// Whether the kernel is set to give transparent huge pages to memory that asks for them.
bool gives_huge_pages(const MachineSettings& settings);         // anonymous memory
bool gives_shared_huge_pages(const MachineSettings& settings);  // memfds

// The settings that the daemon asks for.
struct MachineHints {
  struct HugePages {
    int node = 0;
    uint64_t page_bytes = 2U << 20U;
    uint64_t bytes = 0;
  };
  std::vector<HugePages> huge_pages;  // of the pools; none: transparent ones will do
  uint64_t locked_bytes = 0;          // buffers registered with io_uring
  uint64_t mapped_bytes = 0;          // all memory it will map
};

struct MachineFault {
  std::string sentence;  // what is wrong, with the values, and what it costs
  std::string command;   // mends it, until the next boot at least
};

// The worst first. Empty: nothing is wrong.
std::vector<MachineFault> find_machine_faults(const Topology& topology,
                                              const MachineSettings& settings,
                                              const MachineHints& hints);

}  // namespace lockstep
