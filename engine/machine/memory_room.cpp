#include "engine/machine/memory_room.h"

#include <algorithm>

#include "engine/base/checked_math.h"
#include "engine/machine/arena_rules.h"

namespace lockstep {
MemoryRoom::MemoryRoom(const Topology& topology, uint64_t available_bytes)
    : available_(available_bytes - std::min(available_bytes, kReserveBytes)) {
  for (const Node& node : topology.nodes) {
    if (!node.has_usable_memory()) continue;
    Room& room = nodes_[node.id];
    // Of one node the kernel's own estimate is better than the node's figures.
    const uint64_t reserve = node_reserve_bytes(node.memory_bytes);
    room.free = topology.nodes.size() == 1 ? available_
                                           : node.free_bytes - std::min(node.free_bytes, reserve);
    for (const HugePagePool& pool : node.pools) {
      const uint64_t bytes = pool.free_pages * pool.page_bytes;
      if (pool.page_bytes == kHugePageBytes) room.pool_2mib += bytes;
      if (pool.page_bytes == kGigaPageBytes) room.pool_1gib += bytes;
    }
  }
}

bool MemoryRoom::take_from(Room& room, uint64_t bytes) {
  const uint64_t size = round_up<uint64_t>(bytes, kHugePageBytes);
  const uint64_t giant = round_up<uint64_t>(bytes, kGigaPageBytes);
  if (deserves_giga_pages(bytes, giant) && room.pool_1gib >= giant) {
    room.pool_1gib -= giant;
    return true;
  }
  if (room.pool_2mib >= size) {
    room.pool_2mib -= size;
    return true;
  }
  if (room.free < size || available_ < size) return false;
  room.free -= size;
  available_ -= size;
  return true;
}

bool MemoryRoom::take(int node, uint64_t bytes) {
  if (bytes == 0) return true;
  if (node >= 0) {
    const auto found = nodes_.find(node);
    return found != nodes_.end() && take_from(found->second, bytes);
  }
  const auto most =
      std::ranges::max_element(nodes_, {}, [](const auto& entry) { return entry.second.free; });
  return most != nodes_.end() && take_from(most->second, bytes);
}

uint64_t MemoryRoom::free_bytes(int node) const {
  uint64_t bytes = 0;
  for (const auto& [id, room] : nodes_) bytes += node < 0 || id == node ? room.free : 0;
  return std::min(bytes, available_);
}

uint64_t MemoryRoom::pool_bytes(int node) const {
  uint64_t bytes = 0;
  for (const auto& [id, room] : nodes_) bytes += node < 0 || id == node ? room.pool_2mib : 0;
  return bytes;
}

}  // namespace lockstep
