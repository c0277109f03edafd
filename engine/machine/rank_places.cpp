#include "engine/machine/rank_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/rank_limit.h"

namespace lockstep {
namespace {

// From this many on, a core for HTTP costs the workers less than sharing one with them.
constexpr size_t kCoresThatSpareOne = 8;

// A node that ranks may live on, with the cores that are to work on its memory: its own and those
// of nodes nearby that have no memory. Or several such nodes, joined for one rank.
struct Home {
  std::vector<size_t> nodes;  // places in Topology::nodes; empty: the machine does not say
  std::vector<int> cores;     // the first processor of each
};

// The machine as if it had these nodes alone.
Topology part_of(const Topology& whole, const std::vector<int>& nodes) {
  const auto chosen = [&](int id) { return std::ranges::find(nodes, id) != nodes.end(); };
  Topology part;
  for (const Cpu& cpu : whole.cpus) {
    if (chosen(cpu.node)) part.cpus.push_back(cpu);
  }
  for (const Node& node : whole.nodes) {
    if (!chosen(node.id)) continue;
    Node& kept = part.nodes.emplace_back(node);
    kept.distances.clear();
    for (size_t other = 0; other < whole.nodes.size(); ++other) {
      if (chosen(whole.nodes[other].id)) kept.distances.push_back(node.distances[other]);
    }
  }
  return part;
}

// Either way: firmware may give two.
int distance_between(const Topology& topology, size_t a, size_t b) {
  return std::max(topology.distance(a, b), topology.distance(b, a));
}

size_t place_of(const Topology& topology, int node) {
  const auto found = std::ranges::find(topology.nodes, node, &Node::id);
  return static_cast<size_t>(found - topology.nodes.begin());
}

// The first processor of each core, per node (by place in Topology::nodes).
std::vector<std::vector<int>> cores_of_nodes(const Topology& topology) {
  std::vector<std::vector<int>> cores(topology.nodes.size());
  std::set<std::pair<int, int>> seen;
  for (const Cpu& cpu : topology.cpus) {
    const size_t node = place_of(topology, cpu.node);
    if (node < cores.size() && seen.emplace(cpu.package, cpu.core).second) {
      cores[node].push_back(cpu.id);
    }
  }
  return cores;
}

// The one of `candidates` that is nearest to `node`; the first of several.
size_t nearest(const Topology& topology, const std::vector<size_t>& candidates, size_t node) {
  return *std::ranges::min_element(candidates, {}, [&](size_t candidate) {
    return distance_between(topology, node, candidate);
  });
}

// Nodes with processors and memory; where none has both, the node with memory that is nearest to
// the processors.
std::vector<size_t> nodes_for_ranks(const Topology& topology,
                                    const std::vector<std::vector<int>>& cores) {
  std::vector<size_t> both;
  std::vector<size_t> memory;
  size_t most_cores = 0;
  for (size_t node = 0; node < cores.size(); ++node) {
    if (cores[node].size() > cores[most_cores].size()) most_cores = node;
    if (!topology.nodes[node].has_usable_memory()) continue;
    memory.push_back(node);
    if (!cores[node].empty()) both.push_back(node);
  }
  if (!both.empty() || memory.empty()) return both;
  return {nearest(topology, memory, most_cores)};
}

std::vector<Home> find_homes(const Topology& topology) {
  const auto cores = cores_of_nodes(topology);
  const std::vector<size_t> nodes = nodes_for_ranks(topology, cores);
  std::vector<Home> homes;
  for (const size_t node : nodes) homes.push_back({{node}, cores[node]});
  if (homes.empty()) homes.emplace_back();
  for (size_t node = 0; node < cores.size(); ++node) {
    if (cores[node].empty() || std::ranges::find(nodes, node) != nodes.end()) continue;
    size_t home = 0;
    if (!nodes.empty()) {
      const size_t near = nearest(topology, nodes, node);
      home = static_cast<size_t>(std::ranges::find(nodes, near) - nodes.begin());
    }
    homes[home].cores.insert(homes[home].cores.end(), cores[node].begin(), cores[node].end());
  }
  return homes;
}

int widest_distance(const Topology& topology, const Home& a, const Home& b) {
  int widest = 0;
  for (const size_t from : a.nodes) {
    for (const size_t to : b.nodes) widest = std::max(widest, distance_between(topology, from, to));
  }
  return widest;
}

// Joins the two homes that are nearest to each other; of those equally near, the two with the
// fewest cores together, so that groups stay even.
void join_nearest(const Topology& topology, std::vector<Home>& homes) {
  std::pair<int, size_t> best{std::numeric_limits<int>::max(), 0};
  size_t into = 0;
  size_t from = 1;
  for (size_t a = 0; a < homes.size(); ++a) {
    for (size_t b = a + 1; b < homes.size(); ++b) {
      const std::pair<int, size_t> cost{widest_distance(topology, homes[a], homes[b]),
                                        homes[a].cores.size() + homes[b].cores.size()};
      if (cost >= best) continue;
      best = cost;
      into = a;
      from = b;
    }
  }
  const auto append = [](auto& to, const auto& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  append(homes[into].nodes, homes[from].nodes);
  append(homes[into].cores, homes[from].cores);
  homes.erase(homes.begin() + static_cast<std::ptrdiff_t>(from));
}

// How many ranks each home gets: at least one, then each goes where most cores fall to a rank. No
// home gets more ranks than cores while another has cores to spare.
std::vector<size_t> ranks_of_homes(const std::vector<Home>& homes, size_t rank_count) {
  std::vector<size_t> ranks(homes.size(), 1);
  for (size_t given = homes.size(); given < rank_count; ++given) {
    size_t best = 0;
    for (size_t home = 1; home < homes.size(); ++home) {
      // cores / (ranks + 1), without division.
      if (homes[home].cores.size() * (ranks[best] + 1) >
          homes[best].cores.size() * (ranks[home] + 1)) {
        best = home;
      }
    }
    ++ranks[best];
  }
  return ranks;
}

// A home's cores in ranges, as even as can be; where they do not suffice, one worker per rank
// that is not pinned.
void divide(const Topology& topology, const Home& home, size_t ranks,
            std::vector<RankPlace>& places) {
  const int node = home.nodes.empty() ? -1 : topology.nodes[home.nodes.front()].id;
  const size_t count = home.cores.size();
  for (size_t rank = 0; rank < ranks; ++rank) {
    RankPlace place;
    place.node = node;
    place.processors.assign(home.cores.begin(), home.cores.end());
    if (ranks > count) {
      place.cpus = {-1};
    } else {
      const auto at = [&](size_t part) {
        return home.cores.begin() + static_cast<std::ptrdiff_t>(count * part / ranks);
      };
      place.cpus.assign(at(rank), at(rank + 1));
      place.processors = place.cpus;
    }
    places.push_back(std::move(place));
  }
}

size_t count_workers(const std::vector<RankPlace>& places) {
  size_t count = 0;
  for (const RankPlace& place : places) count += place.cpus.size();
  return count;
}

// How many workers there are in all where nobody says how many.
size_t automatic_worker_count(const RankRequest& request, size_t cores, size_t ranks) {
  // No more than the control groups give time for: workers that are held back in the middle of a
  // step hold back all others.
  size_t usable = cores;
  if (request.cpu_limit && *request.cpu_limit < static_cast<double>(cores)) {
    usable = static_cast<size_t>(std::max(*request.cpu_limit, 0.0));
  }
  const size_t reserved = request.reserved_cores.value_or(usable >= kCoresThatSpareOne ? 1 : 0);
  if (request.reserved_cores && reserved > usable - std::min(usable, ranks)) {
    spdlog::warn(
        "{} cores cannot be reserved: there are {} for {} ranks, and each needs one; lower "
        "--reserve-cpus or --ranks",
        reserved, usable, ranks);
  }
  return usable > reserved ? std::max(ranks, usable - reserved) : ranks;
}

// Takes the last core of the rank that has most, again and again; of equals, the last rank's. So
// ranks stay even, and none is left without a core.
void drop_cores(std::vector<RankPlace>& places, size_t worker_count) {
  for (size_t count = count_workers(places); count > worker_count; --count) {
    const auto most =
        std::ranges::max_element(places.rbegin(), places.rend(), {},
                                 [](const RankPlace& place) { return place.cpus.size(); });
    if (most->cpus.size() == 1) return;
    most->cpus.pop_back();
  }
}

// As many workers as were asked for; pinned where the rank has the cores.
void set_worker_count(std::vector<RankPlace>& places, size_t worker_count) {
  for (RankPlace& place : places) {
    if (worker_count > place.cpus.size()) {
      place.cpus.assign(worker_count, -1);
    } else {
      place.cpus.resize(worker_count);
    }
  }
}

// Time on fewer processors than there are is no right to certain ones: every other process that is
// given some would take the first ones as well. The system, which knows what else runs, moves such
// workers among all of a rank's cores.
bool has_cores_of_its_own(const RankRequest& request, size_t cores) {
  return !request.cpu_limit || *request.cpu_limit >= static_cast<double>(cores);
}

// The machine's only node is every GPU's.
size_t node_place_of(const Topology& topology, const Gpu& gpu) {
  const bool is_told = gpu.node >= 0 || topology.nodes.size() > 1;
  return is_told ? place_of(topology, gpu.node) : 0;
}

// `left`: by place of a node, the processors that no GPU's worker has. The last ones go first: the
// first ones serve most interrupts.
RankPlace place_gpu(const Topology& topology, const Gpu& gpu,
                    const std::vector<std::vector<int>>& cores,
                    std::vector<std::vector<int>>& left) {
  RankPlace place;
  place.device = GpuPlace{gpu.index};
  place.cpus = {-1};
  const size_t node = node_place_of(topology, gpu);
  if (node >= topology.nodes.size()) return place;
  if (topology.nodes[node].has_usable_memory()) place.node = topology.nodes[node].id;
  place.processors = cores[node];
  if (left[node].empty()) return place;
  place.cpus = {left[node].back()};
  place.processors = place.cpus;
  left[node].pop_back();
  return place;
}

}  // namespace

Result<void> set_shares(const std::vector<double>& shares, std::vector<RankPlace>& places) {
  if (!shares.empty() && shares.size() != places.size()) {
    return invalid_input("shares {} are for {} ranks, but there are {}; give one share per rank",
                         fmt::join(shares, ":"), shares.size(), places.size());
  }
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (!shares.empty()) places[rank].share = shares[rank];
    if (!(places[rank].share > 0) || !std::isfinite(places[rank].share)) {
      return invalid_input("share {} of rank {} is {}; every share must be a number above 0",
                           fmt::join(shares, ":"), rank, places[rank].share);
    }
  }
  return {};
}

Result<std::vector<RankPlace>> place_ranks(const Topology& whole, const RankRequest& request) {
  const Topology topology = request.nodes ? part_of(whole, *request.nodes) : whole;
  if (topology.cpus.empty()) {
    return machine_refused(
        "there is no processor that this process may use; allow it some (cpuset.cpus, its "
        "affinity)");
  }
  std::vector<Home> homes = find_homes(topology);
  const size_t rank_count =
      request.rank_count == 0 ? std::min(homes.size(), kRanksMax) : request.rank_count;
  if (rank_count > kRanksMax) {
    return invalid_input("ranks is {}; there may be at most {}", rank_count, kRanksMax);
  }
  while (homes.size() > rank_count) join_nearest(topology, homes);
  const std::vector<size_t> ranks = ranks_of_homes(homes, rank_count);
  std::vector<RankPlace> places;
  for (size_t home = 0; home < homes.size(); ++home) {
    divide(topology, homes[home], ranks[home], places);
  }
  if (request.worker_count != 0) {
    set_worker_count(places, request.worker_count);
  } else {
    const size_t cores = one_cpu_per_core(whole).size();
    drop_cores(places, automatic_worker_count(request, cores, rank_count));
    if (!has_cores_of_its_own(request, cores)) {
      for (RankPlace& place : places) place.cpus.assign(place.cpus.size(), -1);
    }
  }
  for (RankPlace& place : places) {
    place.share = static_cast<double>(place.cpus.size());
    place.caches = caches_of(topology, place.cpus);
  }
  if (auto set = set_shares(request.shares, places); !set) return std::unexpected(set.error());
  return places;
}

Result<std::vector<RankPlace>> place_gpu_ranks(const Topology& topology,
                                               const std::vector<int>& gpus,
                                               const std::vector<double>& shares) {
  const auto cores = cores_of_nodes(topology);
  auto left = cores;
  std::vector<RankPlace> places;
  for (const int index : gpus) {
    places.push_back(place_gpu(topology, gpu_at(topology, index), cores, left));
  }
  if (auto set = set_shares(shares, places); !set) return std::unexpected(set.error());
  return places;
}

Topology without_cores(Topology topology, const std::vector<int>& cpus) {
  std::set<std::pair<int, int>> cores;
  for (const Cpu& cpu : topology.cpus) {
    if (std::ranges::find(cpus, cpu.id) != cpus.end()) cores.emplace(cpu.package, cpu.core);
  }
  std::erase_if(topology.cpus, [&](const Cpu& cpu) {
    return cores.contains({cpu.package, cpu.core});
  });
  return topology;
}

}  // namespace lockstep
