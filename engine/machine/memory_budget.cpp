#include "engine/machine/memory_budget.h"

#include <algorithm>
#include <limits>

#include "engine/base/checked_math.h"
#include "engine/machine/arena_rules.h"
#include "engine/machine/system_files.h"

namespace lockstep {

namespace {

using std::filesystem::path;

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

}  // namespace

uint64_t available_memory_bytes(const path& root) {
  const auto info = read_memory_info(root / "proc/meminfo");
  const auto available = info.find("MemAvailable");
  return std::min(available == info.end() ? kUnlimited : available->second,
                  read_control_group_limits(root).memory_left_bytes.value_or(kUnlimited));
}

uint64_t available_memory_bytes_on_node(int node, const path& root) {
  const Topology topology = read_topology(root / "sys", {});
  const Node* const found = topology.find_node(node);
  if (found == nullptr) return 0;
  return std::min(found->free_bytes, available_memory_bytes(root));
}

MemoryLimits read_memory_limits() {
  return {.available_bytes = available_memory_bytes(), .pools = read_control_group_limits().pools};
}

uint64_t free_pool_bytes(const Topology& topology, const PoolLimits& limits, int node,
                         uint64_t page_bytes) {
  uint64_t bytes = 0;
  for (const Node& it : topology.nodes) {
    if ((node >= 0 && it.id != node) || !it.memory_allowed) continue;
    for (const HugePagePool& pool : it.pools) {
      if (pool.page_bytes == page_bytes) bytes += pool.free_pages * page_bytes;
    }
  }
  return std::min(bytes, limits.left_bytes(page_bytes));
}

uint64_t free_huge_page_bytes_on_node(int node, const path& root) {
  const Topology topology = read_topology(root / "sys", {});
  const PoolLimits limits = read_control_group_limits(root).pools;
  return free_pool_bytes(topology, limits, node, kHugePageBytes) +
         free_pool_bytes(topology, limits, node, kGigaPageBytes);
}

uint64_t pool_page_bytes(const Topology& topology, const PoolLimits& limits, int node,
                         uint64_t bytes) {
  const auto holds = [&](uint64_t page_bytes) {
    return free_pool_bytes(topology, limits, node, page_bytes) >= round_up(bytes, page_bytes);
  };
  const uint64_t giant = round_up<uint64_t>(bytes, kGigaPageBytes);
  if (deserves_giga_pages(bytes, giant) && holds(kGigaPageBytes)) return kGigaPageBytes;
  return holds(kHugePageBytes) ? kHugePageBytes : 0;
}

MemoryBudget::MemoryBudget(const Topology& topology, const MemoryLimits& limits) : limits_(limits) {
  uint64_t& available = limits_.available_bytes;
  available -= std::min(available, kReserveBytes);
  for (const Node& node : topology.nodes) {
    if (!node.has_usable_memory()) continue;
    NodeBudget& budget = nodes_[node.id];
    // On one node the kernel's own estimate is better than the node's figures.
    const uint64_t reserve = node_reserve_bytes(node.memory_bytes);
    budget.free = topology.nodes.size() == 1 ? available
                                             : node.free_bytes - std::min(node.free_bytes, reserve);
    for (const HugePagePool& pool : node.pools) {
      const uint64_t bytes = pool.free_pages * pool.page_bytes;
      if (pool.page_bytes == kHugePageBytes) budget.pool_2mib += bytes;
      if (pool.page_bytes == kGigaPageBytes) budget.pool_1gib += bytes;
    }
  }
}

bool MemoryBudget::take_from(NodeBudget& budget, uint64_t bytes) {
  const uint64_t size = round_up<uint64_t>(bytes, kHugePageBytes);
  const uint64_t giant = round_up<uint64_t>(bytes, kGigaPageBytes);
  const auto taken = [](uint64_t& here, uint64_t& in_all, uint64_t wanted) {
    if (here < wanted || in_all < wanted) return false;
    here -= wanted;
    in_all -= wanted;
    return true;
  };
  if (deserves_giga_pages(bytes, giant) &&
      taken(budget.pool_1gib, limits_.pools.left_1gib_bytes, giant)) {
    return true;
  }
  return taken(budget.pool_2mib, limits_.pools.left_2mib_bytes, size) ||
         taken(budget.free, limits_.available_bytes, size);
}

bool MemoryBudget::take(int node, uint64_t bytes) {
  if (bytes == 0) return true;
  if (node >= 0) {
    const auto found = nodes_.find(node);
    return found != nodes_.end() && take_from(found->second, bytes);
  }
  const auto most =
      std::ranges::max_element(nodes_, {}, [](const auto& entry) { return entry.second.free; });
  return most != nodes_.end() && take_from(most->second, bytes);
}

uint64_t MemoryBudget::free_bytes(int node) const {
  uint64_t bytes = 0;
  for (const auto& [id, budget] : nodes_) bytes += node < 0 || id == node ? budget.free : 0;
  return std::min(bytes, limits_.available_bytes);
}

uint64_t MemoryBudget::pool_bytes(int node) const {
  uint64_t bytes = 0;
  for (const auto& [id, budget] : nodes_) bytes += node < 0 || id == node ? budget.pool_2mib : 0;
  return std::min(bytes, limits_.pools.left_2mib_bytes);
}

uint64_t MemoryBudget::giga_pool_bytes(int node) const {
  uint64_t bytes = 0;
  for (const auto& [id, budget] : nodes_) bytes += node < 0 || id == node ? budget.pool_1gib : 0;
  return std::min(bytes, limits_.pools.left_1gib_bytes) / kGigaPageBytes * kGigaPageBytes;
}

}  // namespace lockstep
