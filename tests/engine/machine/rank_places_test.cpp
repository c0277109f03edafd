#include "engine/machine/rank_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "engine/base/log.h"
#include "engine/base/rank_limit.h"
#include "tests/engine/machine/simulated_gpus.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Cpus = std::vector<int>;

std::vector<RankPlace> place(const Topology& topology, const RankRequest& request) {
  auto places = place_ranks(topology, request);
  EXPECT_TRUE(places.has_value()) << places.error().message;
  return places.value_or(std::vector<RankPlace>());
}

std::vector<int> nodes_of(const std::vector<RankPlace>& places) {
  std::vector<int> nodes;
  for (const RankPlace& it : places) nodes.push_back(it.node);
  return nodes;
}

std::vector<Cpus> cpus_of(const std::vector<RankPlace>& places) {
  std::vector<Cpus> cpus;
  for (const RankPlace& it : places) cpus.push_back(it.cpus);
  return cpus;
}

std::vector<size_t> worker_counts(const std::vector<RankPlace>& places) {
  std::vector<size_t> counts;
  for (const RankPlace& it : places) counts.push_back(it.cpus.size());
  return counts;
}

// Reserving nothing, so that what is divided is all there is.
RankRequest ranks(size_t count) {
  RankRequest request;
  request.rank_count = count;
  request.reserved_cores = 0;
  return request;
}

Topology two_sockets() {
  return topology_of(two_socket_machine(), "0-15", "0-1");
}

Topology sub_nodes() {
  return topology_of(sub_node_machine(), "0-15", "0-7");
}

TEST(RankPlaces, by_default_every_node_gets_a_rank_and_each_of_its_cores_a_worker) {
  const auto places = place(two_sockets(), ranks(0));
  EXPECT_EQ(nodes_of(places), (std::vector<int>{0, 1}));
  EXPECT_EQ(cpus_of(places), (std::vector<Cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(places[0].share, 4);
  EXPECT_EQ(place(sub_nodes(), ranks(0)).size(), 8U);
}

TEST(RankPlaces, a_place_tells_which_of_its_workers_share_a_cache) {
  const Topology topology = topology_of(machine_of_caches({3, 3}), "0-5", "0");
  EXPECT_EQ(place(topology, ranks(1))[0].caches, (std::vector<int>{0, 0, 0, 3, 3, 3}));
  const auto two = place(topology, ranks(2));
  EXPECT_EQ(two[0].caches, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(two[1].caches, (std::vector<int>{3, 3, 3}));
  RankRequest request = ranks(1);
  request.worker_count = 4;
  EXPECT_EQ(place(topology, request)[0].caches, (std::vector<int>{0, 0, 0, 3}));
  request.worker_count = 7;  // not pinned
  EXPECT_TRUE(place(topology, request)[0].caches.empty());
  EXPECT_TRUE(place(two_sockets(), ranks(1))[0].caches.empty());  // no file tells
}

TEST(RankPlaces, of_named_nodes_only_their_processors_and_memory_are_taken) {
  RankRequest request = ranks(0);
  request.nodes = {1};
  const auto one = place(two_sockets(), request);
  EXPECT_EQ(nodes_of(one), (std::vector<int>{1}));
  EXPECT_EQ(cpus_of(one), (std::vector<Cpus>{{4, 5, 6, 7}}));
  request.nodes = {1, 6, 7};
  EXPECT_EQ(nodes_of(place(sub_nodes(), request)), (std::vector<int>{1, 6, 7}));
  request.rank_count = 2;  // the nearest two are joined
  EXPECT_EQ(cpus_of(place(sub_nodes(), request)), (std::vector<Cpus>{{2, 3}, {12, 13, 14, 15}}));
  request.nodes = {3};
  EXPECT_EQ(cpus_of(place(sub_nodes(), request)), (std::vector<Cpus>{{6}, {7}}));
}

TEST(RankPlaces, naming_every_node_is_naming_none) {
  for (const NamedTopology& machine : simulated_topologies()) {
    RankRequest request;
    const auto expected = place(machine.topology, request);
    request.nodes.emplace();
    for (const Node& node : machine.topology.nodes) request.nodes->push_back(node.id);
    const auto named = place(machine.topology, request);
    EXPECT_EQ(nodes_of(named), nodes_of(expected)) << machine.name;
    EXPECT_EQ(cpus_of(named), cpus_of(expected)) << machine.name;
  }
}

TEST(RankPlaces, cores_of_nodes_that_are_not_named_are_reserved_first) {
  RankRequest request;
  request.nodes = {1};
  // One of 8 cores is to be free of workers by default, and four are on node 0.
  EXPECT_THAT(worker_counts(place(two_sockets(), request)), ElementsAre(4));
  request.reserved_cores = 6;
  EXPECT_THAT(worker_counts(place(two_sockets(), request)), ElementsAre(2));
}

TEST(RankPlaces, processors_without_memory_go_to_the_nearest_rank) {
  // Node 1 has processors 2 and 3 only, and is nearest to node 7; node 2 has memory only.
  const auto places = place(topology_of(lopsided_machine(), "0-5", "0,2,7"), ranks(0));
  EXPECT_EQ(nodes_of(places), (std::vector<int>{0, 7}));
  EXPECT_EQ(cpus_of(places), (std::vector<Cpus>{{0, 1}, {4, 5, 2, 3}}));
}

TEST(RankPlaces, memory_that_may_not_be_used_counts_as_none) {
  const auto places = place(topology_of(two_socket_machine(), "0-15", "1"), ranks(0));
  EXPECT_EQ(nodes_of(places), (std::vector<int>{1}));
  EXPECT_EQ(places[0].cpus.size(), 8U);
}

TEST(RankPlaces, where_no_node_has_both_the_nearest_memory_is_used) {
  const auto places = place(topology_of(lopsided_machine(), "0-1", "2,7"), ranks(0));
  EXPECT_EQ(nodes_of(places), (std::vector<int>{2}));
  EXPECT_EQ(cpus_of(places), (std::vector<Cpus>{{0, 1}}));
}

TEST(RankPlaces, where_no_memory_may_be_used_no_node_is_named) {
  const auto places = place(topology_of(two_socket_machine(), "0-15", ""), ranks(2));
  EXPECT_EQ(nodes_of(places), (std::vector<int>{-1, -1}));
  EXPECT_EQ(cpus_of(places), (std::vector<Cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(RankPlaces, simulated_ranks_divide_nodes_in_proportion_to_their_cores) {
  EXPECT_EQ(cpus_of(place(topology_of(one_node_machine(), "0-3", "0"), ranks(3))),
            (std::vector<Cpus>{{0}, {1}, {2, 3}}));
  const auto places = place(topology_of(two_socket_machine(), "0-5,8-15", "0-1"), ranks(3));
  EXPECT_EQ(nodes_of(places), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(nodes_of(place(two_sockets(), ranks(6))), (std::vector<int>{0, 0, 0, 1, 1, 1}));
  EXPECT_THAT(worker_counts(place(two_sockets(), ranks(6))), ElementsAre(1, 1, 2, 1, 1, 2));
}

TEST(RankPlaces, a_node_with_few_cores_is_not_crowded_while_others_have_some_to_spare) {
  // Node 0 has the one core 3, node 1 the four from 4 on.
  const auto places = place(topology_of(two_socket_machine(), "3-7", "0-1"), ranks(5));
  EXPECT_EQ(nodes_of(places), (std::vector<int>{0, 1, 1, 1, 1}));
  EXPECT_EQ(cpus_of(places), (std::vector<Cpus>{{3}, {4}, {5}, {6}, {7}}));
}

TEST(RankPlaces, more_ranks_than_cores_share_them_unpinned) {
  for (const RankPlace& it : place(topology_of(one_node_machine(), "0-1", "0"), ranks(4))) {
    EXPECT_EQ(it.cpus, Cpus{-1});
    EXPECT_EQ(it.node, 0);
  }
}

TEST(RankPlaces, fewer_ranks_than_nodes_take_groups_of_near_ones) {
  const auto two = place(sub_nodes(), ranks(2));
  EXPECT_EQ(nodes_of(two), (std::vector<int>{0, 4}));
  EXPECT_EQ(two[0].cpus, (Cpus{0, 1, 2, 3, 4, 5, 6, 7}));
  const auto four = place(sub_nodes(), ranks(4));
  EXPECT_EQ(nodes_of(four), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_THAT(worker_counts(four), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(worker_counts(place(sub_nodes(), ranks(3))), ElementsAre(8, 4, 4));
  EXPECT_EQ(place(sub_nodes(), ranks(1))[0].cpus.size(), 16U);
  const auto boards = place(topology_of(eight_node_machine(), "0-31", "0-7"), ranks(2));
  EXPECT_EQ(nodes_of(boards), (std::vector<int>{0, 4}));
  EXPECT_THAT(worker_counts(boards), ElementsAre(16, 16));
}

TEST(RankPlaces, given_workers_are_pinned_where_there_are_cores_and_float_where_not) {
  RankRequest request = ranks(2);
  request.worker_count = 3;
  EXPECT_EQ(cpus_of(place(two_sockets(), request)), (std::vector<Cpus>{{0, 1, 2}, {4, 5, 6}}));
  request.worker_count = 5;
  EXPECT_EQ(cpus_of(place(two_sockets(), request)), (std::vector<Cpus>(2, Cpus(5, -1))));
}

TEST(RankPlaces, under_a_limit_on_processor_time_workers_float_on_all_cores_of_their_node) {
  RankRequest request;
  request.cpu_limit = 4;
  const auto places = place(two_sockets(), request);
  EXPECT_EQ(cpus_of(places), (std::vector<Cpus>(2, Cpus(2, -1))));
  EXPECT_EQ(places[0].processors, (Cpus{0, 1, 2, 3}));
  EXPECT_EQ(places[1].processors, (Cpus{4, 5, 6, 7}));
  request.cpu_limit = 8;  // as many as there are cores: a set of them may well come with it
  EXPECT_EQ(place(two_sockets(), request)[0].cpus, (Cpus{0, 1, 2, 3}));
}

TEST(RankPlaces, cores_are_reserved_from_the_ends_of_ranks_in_turn) {
  RankRequest request = ranks(0);
  request.reserved_cores = 1;
  EXPECT_EQ(cpus_of(place(two_sockets(), request)), (std::vector<Cpus>{{0, 1, 2, 3}, {4, 5, 6}}));
  request.reserved_cores = 3;
  EXPECT_EQ(cpus_of(place(two_sockets(), request)), (std::vector<Cpus>{{0, 1, 2}, {4, 5}}));
  for (const size_t most : {6U, 7U, 100U}) {
    request.reserved_cores = most;
    EXPECT_EQ(cpus_of(place(two_sockets(), request)), (std::vector<Cpus>{{0}, {4}}));
  }
}

TEST(RankPlaces, one_core_is_reserved_from_eight_on_unless_workers_are_given) {
  RankRequest request;
  EXPECT_THAT(worker_counts(place(two_sockets(), request)), ElementsAre(4, 3));
  EXPECT_THAT(worker_counts(place(topology_of(two_socket_machine(), "0-6", "0-1"), request)),
              ElementsAre(4, 3));  // seven cores: all of them
  request.worker_count = 4;
  EXPECT_THAT(worker_counts(place(two_sockets(), request)), ElementsAre(4, 4));
}

TEST(RankPlaces, a_limit_on_processor_time_lowers_the_automatic_count_evenly) {
  RankRequest request = ranks(0);
  request.cpu_limit = 5.9;
  EXPECT_THAT(worker_counts(place(two_sockets(), request)), ElementsAre(3, 2));
  request.cpu_limit = 0.5;
  EXPECT_THAT(worker_counts(place(two_sockets(), request)), ElementsAre(1, 1));
  request.cpu_limit = 64;
  EXPECT_THAT(worker_counts(place(two_sockets(), request)), ElementsAre(4, 4));
  request.cpu_limit = 2;
  request.worker_count = 4;
  EXPECT_THAT(worker_counts(place(two_sockets(), request)), ElementsAre(4, 4));
}

TEST(RankPlaces, shares_are_given_on_to_the_ranks) {
  RankRequest request = ranks(2);
  request.shares = {3, 1};
  const auto places = place(two_sockets(), request);
  EXPECT_EQ(places[0].share, 3);
  EXPECT_EQ(places[1].share, 1);
}

TEST(RankPlaces, shares_that_do_not_fit_the_ranks_are_refused_with_both_numbers) {
  RankRequest request = ranks(0);
  request.shares = {3, 1, 1};
  const auto places = place_ranks(two_sockets(), request);
  ASSERT_FALSE(places.has_value());
  EXPECT_EQ(places.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(places.error().message, HasSubstr("3:1:1"));
  EXPECT_THAT(places.error().message, HasSubstr("for 3 ranks, but there are 2"));
}

TEST(RankPlaces, shares_that_are_no_part_of_the_work_are_refused) {
  for (const double share : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    RankRequest request = ranks(2);
    request.shares = {1, share};
    const auto places = place_ranks(two_sockets(), request);
    ASSERT_FALSE(places.has_value()) << share;
    EXPECT_EQ(places.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(places.error().message, HasSubstr("rank 1"));
  }
}

TEST(RankPlaces, without_a_processor_the_machine_refuses) {
  const auto places = place_ranks(topology_of(one_node_machine(), "", "0"), ranks(0));
  ASSERT_FALSE(places.has_value());
  EXPECT_EQ(places.error().kind, ErrorKind::kMachineRefused);
}

TEST(RankPlaces, more_ranks_than_the_option_takes_are_refused) {
  for (const size_t count : {kRanksMax + 1, size_t{1} << 40U}) {
    const auto places = place_ranks(two_sockets(), ranks(count));
    ASSERT_FALSE(places.has_value()) << count;
    EXPECT_EQ(places.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(places.error().message, HasSubstr("there may be at most 64"));
  }
  EXPECT_EQ(place(two_sockets(), ranks(kRanksMax)).size(), kRanksMax);
}

TEST(RankPlaces, a_machine_of_more_nodes_has_ranks_of_several) {
  Topology machine;
  for (int node = 0; node < 100; ++node) {
    Node& added = machine.nodes.emplace_back();
    added.id = node;
    added.memory_bytes = 1U << 30U;
    added.distances.assign(100, 20);
    added.distances[static_cast<size_t>(node)] = 10;
    machine.cpus.push_back({.id = node, .package = node, .core = 0, .node = node});
  }
  const auto places = place(machine, ranks(0));
  EXPECT_EQ(places.size(), kRanksMax);
  size_t cores = 0;
  for (const RankPlace& rank : places) cores += rank.cpus.size();
  EXPECT_EQ(cores, 100U);
}

// Checks what holds on every machine for every request.
void check_places(const Topology& topology, const RankRequest& request) {
  const auto places = place(topology, request);
  const std::vector<int> cores = one_cpu_per_core(topology);
  ASSERT_GT(places.size(), 0U);
  if (request.rank_count != 0) {
    ASSERT_EQ(places.size(), request.rank_count);
  }
  std::set<int> pinned;
  std::set<int> homes;
  for (const Node& node : topology.nodes) {
    const bool has_cpus =
        std::ranges::find(topology.cpus, node.id, &Cpu::node) != topology.cpus.end();
    if (node.has_usable_memory() && has_cpus) homes.insert(node.id);
  }
  size_t workers = 0;
  for (const RankPlace& it : places) {
    ASSERT_GE(it.cpus.size(), 1U);
    workers += it.cpus.size();
    EXPECT_EQ(it.share, static_cast<double>(it.cpus.size()));
    const Node* const node = topology.find_node(it.node);
    EXPECT_TRUE(it.node == -1 || (node != nullptr && node->has_usable_memory()));
    if (request.worker_count != 0) {
      EXPECT_EQ(it.cpus.size(), request.worker_count);
    }
    for (const int cpu : it.cpus) {
      if (cpu == -1) {
        EXPECT_TRUE(places.size() > cores.size() || request.worker_count > 1 ||
                    request.cpu_limit.value_or(1e9) < static_cast<double>(cores.size()));
        EXPECT_FALSE(it.processors.empty());
        EXPECT_EQ(std::ranges::count(it.cpus, -1), std::ssize(it.cpus));
        continue;
      }
      EXPECT_TRUE(pinned.insert(cpu).second) << "processor " << cpu << " is taken twice";
      const auto found = std::ranges::find(topology.cpus, cpu, &Cpu::id);
      ASSERT_NE(found, topology.cpus.end());
      EXPECT_NE(std::ranges::find(cores, cpu), cores.end()) << "a sibling is pinned";
      if (places.size() >= homes.size() && homes.contains(found->node)) {
        EXPECT_EQ(found->node, it.node) << "processor " << cpu << " works on another's memory";
      }
    }
  }
  if (request.worker_count == 0 && places.size() <= cores.size()) {
    size_t usable = cores.size();
    if (request.cpu_limit) usable = std::min(usable, static_cast<size_t>(*request.cpu_limit));
    const size_t reserved = request.reserved_cores.value_or(usable >= 8 ? 1 : 0);
    EXPECT_EQ(workers, std::max(places.size(), usable - std::min(usable, reserved)));
  }
}

TEST(RankPlaces, on_every_machine_every_request_gives_each_rank_workers_of_its_own) {
  // Reservations that are too large are warned of, here by the hundred.
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::err);
  for (const NamedTopology& machine : simulated_topologies()) {
    for (size_t count = 0; count <= 9; ++count) {
      for (const size_t worker_count : {0U, 1U, 2U, 5U}) {
        for (const int reserved : {-1, 0, 1, 3}) {
          for (const double limit : {0.0, 0.7, 3.5, 100.0}) {
            SCOPED_TRACE(machine.name + ", ranks " + std::to_string(count) + ", workers " +
                         std::to_string(worker_count) + ", reserved " + std::to_string(reserved) +
                         ", limit " + std::to_string(limit));
            RankRequest request;
            request.rank_count = count;
            request.worker_count = worker_count;
            if (reserved >= 0) request.reserved_cores = static_cast<size_t>(reserved);
            if (limit > 0) request.cpu_limit = limit;
            check_places(machine.topology, request);
          }
        }
      }
    }
  }
  spdlog::set_level(level);
}

TEST(RankPlaces, this_machine_can_be_divided) {
  for (size_t count = 0; count <= 9; ++count) check_places(read_topology(), ranks(count));
}

TEST(RankPlaces, each_gpu_is_driven_by_a_processor_of_its_node_of_its_own) {
  const Topology topology = machine_with_gpus();
  const auto places = place_gpu_ranks(topology, {0, 1, 2, 3}, {});
  ASSERT_TRUE(places.has_value()) << places.error().message;
  ASSERT_EQ(places->size(), 4U);
  std::set<int> pinned;
  for (size_t rank = 0; rank < places->size(); ++rank) {
    const RankPlace& place = (*places)[rank];
    EXPECT_EQ(std::get<GpuPlace>(place.device).index, static_cast<int>(rank));
    EXPECT_EQ(place.node, rank < 2 ? 0 : 1);
    EXPECT_EQ(place.share, 1);
    ASSERT_EQ(place.cpus.size(), 1U);
    EXPECT_TRUE(pinned.insert(place.cpus[0]).second) << place.cpus[0];
    const auto cpu = std::ranges::find(topology.cpus, place.cpus[0], &Cpu::id);
    ASSERT_NE(cpu, topology.cpus.end());
    EXPECT_EQ(cpu->node, place.node);
  }
}

TEST(RankPlaces, a_gpu_of_which_the_node_is_not_told_is_driven_from_anywhere) {
  Topology topology = machine_with_gpus();
  topology.gpus[1].node = -1;
  const auto places = place_gpu_ranks(topology, {1}, {});
  ASSERT_TRUE(places.has_value()) << places.error().message;
  EXPECT_EQ((*places)[0].node, -1);
  EXPECT_EQ((*places)[0].cpus, std::vector<int>{-1});
  EXPECT_TRUE((*places)[0].processors.empty());
  // A machine of one node has only that.
  Topology small = topology_of(two_socket_machine(), "0-3", "0");
  small.nodes.resize(1);
  small.gpus = {simulated_gpu(0, -1)};
  const auto alone = place_gpu_ranks(small, {0}, {});
  ASSERT_TRUE(alone.has_value());
  EXPECT_EQ((*alone)[0].node, 0);
  EXPECT_EQ((*alone)[0].cpus, std::vector<int>{3});
}

TEST(RankPlaces, more_gpus_than_cores_of_their_node_share_it) {
  Topology topology = topology_of(two_socket_machine(), "0-1", "0-1");
  topology.gpus = {simulated_gpu(0, 0), simulated_gpu(1, 0), simulated_gpu(2, 0)};
  const auto places = place_gpu_ranks(topology, {0, 1, 2}, {});
  ASSERT_TRUE(places.has_value());
  EXPECT_EQ((*places)[0].cpus, std::vector<int>{1});
  EXPECT_EQ((*places)[1].cpus, std::vector<int>{0});
  EXPECT_EQ((*places)[2].cpus, std::vector<int>{-1});
  EXPECT_EQ((*places)[2].processors, (std::vector<int>{0, 1}));
}

TEST(RankPlaces, gpus_share_evenly_unless_shares_are_given) {
  const Topology topology = machine_with_gpus();
  const auto shares_of = [&](const std::vector<double>& given) {
    std::vector<double> shares;
    const auto places = place_gpu_ranks(topology, {0, 1}, given);
    if (!places) return shares;
    for (const RankPlace& place : *places) shares.push_back(place.share);
    return shares;
  };
  EXPECT_EQ(shares_of({}), (std::vector<double>{1, 1}));
  EXPECT_EQ(shares_of({3, 1}), (std::vector<double>{3, 1}));
  EXPECT_TRUE(shares_of({1}).empty());
  EXPECT_TRUE(shares_of({1, 0}).empty());
}

}  // namespace
}  // namespace lockstep
