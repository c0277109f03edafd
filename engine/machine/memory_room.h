// How much room there is for arenas, before any is taken: what NodeMemory would do, on paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "engine/machine/topology.h"

namespace lockstep {

class MemoryRoom {
 public:
  // `available_bytes`: what the process can take of memory that is not of a pool, on all nodes
  // together.
  MemoryRoom(const Topology& topology, uint64_t available_bytes);

  // Takes room for an arena on a node (-1: on any), as NodeMemory would: wholly of a pool that
  // holds it, else wholly of other memory. False when there is none; nothing is taken then.
  bool take(int node, uint64_t bytes);

  // What is left on a node (-1: in all) of memory that is not of a pool, and in its pool of 2 MiB
  // pages.
  uint64_t free_bytes(int node) const;
  uint64_t pool_bytes(int node) const;

 private:
  struct Room {
    uint64_t free = 0;
    uint64_t pool_2mib = 0;
    uint64_t pool_1gib = 0;
  };
  bool take_from(Room& room, uint64_t bytes);

  std::map<int, Room> nodes_;
  uint64_t available_ = 0;
};

}  // namespace lockstep
