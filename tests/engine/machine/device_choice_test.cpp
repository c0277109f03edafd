#include "engine/machine/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/machine/simulated_gpus.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kWithoutCuda = "this program was built without CUDA";

Topology machine_without_gpus() {
  Topology topology = machine_with_gpus();
  topology.gpus.clear();
  topology.no_gpus = kWithoutCuda;
  topology.gpus_possible = false;
  return topology;
}

DeviceChoice choose(const std::string& request, const Topology& topology,
                    uint64_t model_bytes = 0) {
  auto choice = choose_devices(request, topology, model_bytes);
  EXPECT_TRUE(choice.has_value()) << request << ": " << choice.error().message;
  return choice.value_or(DeviceChoice());
}

std::string refusal(const std::string& request, const Topology& topology,
                    ErrorKind kind = ErrorKind::kInvalidInput) {
  const auto choice = choose_devices(request, topology, 0);
  EXPECT_FALSE(choice.has_value()) << request << " gives " << device_names(*choice);
  if (choice) return "";
  EXPECT_EQ(choice.error().kind, kind) << request;
  return choice.error().message;
}

TEST(DeviceChoice, words_stand_for_every_node_every_gpu_or_both) {
  const Topology topology = machine_with_gpus();
  EXPECT_EQ(device_names(choose("cpu", topology)), "node0, node1");
  EXPECT_EQ(device_names(choose("gpu", topology)), "gpu0, gpu1, gpu2, gpu3");
  EXPECT_EQ(device_names(choose("all", topology)), "gpu0, gpu1, gpu2, gpu3, node0, node1");
}

TEST(DeviceChoice, names_stand_for_one_device_each_in_any_order) {
  const Topology topology = machine_with_gpus();
  const DeviceChoice choice = choose("node1,gpu2,gpu0,node0", topology);
  EXPECT_THAT(choice.nodes, ElementsAre(0, 1));
  EXPECT_THAT(choice.gpus, ElementsAre(0, 2));
  EXPECT_FALSE(choice.automatic);
  EXPECT_THAT(choice.reason, HasSubstr("--devices node1,gpu2,gpu0,node0"));
  EXPECT_THAT(choose("gpu3", topology).nodes, IsEmpty());
  EXPECT_THAT(choose("node1", machine_without_gpus()).nodes, ElementsAre(1));
}

TEST(DeviceChoice, of_fewer_gpus_those_come_first_that_reach_one_another) {
  using Sets = std::vector<std::vector<int>>;
  Topology topology = machine_with_gpus();
  EXPECT_EQ(fewer_gpus(topology), (Sets{{0, 1, 2}, {0, 1}, {0}}));
  topology.gpus[1].free_bytes = 0;
  EXPECT_EQ(fewer_gpus(topology), (Sets{{0, 2, 3}, {2, 3}, {0, 2}, {2}, {0}}));
  topology.gpus[3].free_bytes += kGiB;
  EXPECT_EQ(fewer_gpus(topology), (Sets{{0, 2, 3}, {2, 3}, {0, 3}, {3}}));
  topology.gpus.resize(1);
  EXPECT_EQ(fewer_gpus(topology), Sets());
}

TEST(DeviceChoice, gpus_keep_the_runtimes_numbers_where_one_is_left_out) {
  Topology topology = machine_with_gpus();
  topology.gpus.erase(topology.gpus.begin() + 1);
  EXPECT_THAT(choose("gpu", topology).gpus, ElementsAre(0, 2, 3));
  EXPECT_THAT(refusal("gpu1", topology, ErrorKind::kMachineRefused),
              HasSubstr("this machine has gpu0, gpu2, gpu3"));
}

TEST(DeviceChoice, by_default_every_gpu_is_taken_when_all_together_have_space) {
  Topology topology = machine_with_gpus();
  topology.gpus[2].free_bytes = 20 * kGiB;
  uint64_t space = 0;
  for (const Gpu& gpu : topology.gpus) space += usable_bytes(gpu);
  const DeviceChoice fitting = choose("auto", topology, space);
  EXPECT_EQ(device_names(fitting), "gpu0, gpu1, gpu2, gpu3");
  EXPECT_TRUE(fitting.automatic);
  EXPECT_EQ(fitting.reason,
            "the model fits on all GPUs: 249.6 GiB of weights, cache and activations at least, "
            "space for 249.6 GiB (gpu0 77.4, gpu1 77.4, gpu2 17.4, gpu3 77.4)");
  const DeviceChoice misfit = choose("auto", topology, space + 1);
  EXPECT_EQ(device_names(misfit), "node0, node1");
  EXPECT_THAT(misfit.reason, HasSubstr("the model does not fit on all GPUs"));
  // Memory that NCCL takes is taken of each.
  const uint64_t nccl_bytes = kGiB;
  const auto joined = choose_devices("auto", topology, space - 4 * nccl_bytes, nccl_bytes);
  ASSERT_TRUE(joined.has_value());
  EXPECT_EQ(joined->gpus.size(), 4U);
  EXPECT_THAT(joined->reason, HasSubstr("space for 245.6 GiB beside 1.0 GiB each for NCCL"));
  const auto crowded = choose_devices("auto", topology, space - 4 * nccl_bytes + 1, nccl_bytes);
  ASSERT_TRUE(crowded.has_value());
  EXPECT_EQ(device_names(*crowded), "node0, node1");
  // One without any would be a rank that can hold nothing.
  topology.gpus[3].free_bytes = 0;
  EXPECT_EQ(device_names(choose("auto", topology, 1)), "node0, node1");
}

TEST(DeviceChoice, gpus_that_stay_idle_are_told_together_where_the_reason_is_one) {
  Topology topology = machine_with_gpus();
  topology.gpus[1].free_bytes = kGiB;
  DeviceChoice choice = choose("gpu3", topology);
  set_idle(topology, "they are slow", "--devices all", choice);
  EXPECT_THAT(idle_sentences(choice),
              ElementsAre("gpu0, gpu2 stay idle: they are slow; give --devices all to use them",
                          "gpu1 stays idle: 1.0 GiB of memory are free, and 2.6 are kept for the "
                          "driver; end what takes the rest"));
  EXPECT_TRUE(idle_sentences(choose("gpu", topology)).empty());
  EXPECT_EQ(devices_option(topology, choose("all", topology)), "--devices all");
  EXPECT_EQ(devices_option(topology, choose("gpu2,node0", topology)), "--devices gpu2,node0");
}

TEST(DeviceChoice, without_gpus_the_default_is_every_node_and_the_reason_says_why) {
  const DeviceChoice choice = choose("auto", machine_without_gpus(), kGiB);
  EXPECT_THAT(choice.nodes, ElementsAre(0, 1));
  EXPECT_EQ(choice.reason, std::string("there is no GPU: ") + kWithoutCuda);
}

TEST(DeviceChoice, what_is_not_there_is_refused_with_what_there_is) {
  const Topology topology = machine_with_gpus();
  EXPECT_THAT(refusal("node3", topology),
              HasSubstr("there is no node3: this machine has node0, node1"));
  EXPECT_THAT(refusal("gpu4", topology, ErrorKind::kMachineRefused),
              HasSubstr("there is no gpu4: this machine has gpu0, gpu1, gpu2, gpu3"));
}

// The driver may be loaded anew, the GPU may come back from a reset; another build may not.
TEST(DeviceChoice, gpus_that_may_come_back_are_the_machines_refusal) {
  Topology topology = machine_without_gpus();
  for (const char* request : {"gpu", "all", "gpu0", "node0,gpu0"}) {
    EXPECT_THAT(refusal(request, topology), HasSubstr(kWithoutCuda)) << request;
  }
  topology.no_gpus = "there is no NVIDIA driver";
  topology.gpus_possible = true;
  for (const char* request : {"gpu", "all", "gpu0", "node0,gpu0"}) {
    EXPECT_THAT(refusal(request, topology, ErrorKind::kMachineRefused),
                HasSubstr("there is no NVIDIA driver"));
  }
  // A request that is wrong in itself stays so.
  EXPECT_THAT(refusal("gpu0,gpu0x", topology), HasSubstr("is not known"));
  EXPECT_THAT(refusal("gpu0,node9", topology), HasSubstr("there is no node9"));
  EXPECT_THAT(refusal("gpu0,gpu0", topology), HasSubstr("named twice"));
}

TEST(DeviceChoice, what_is_no_name_is_refused_with_those_that_are) {
  for (const char* request :
       {"", "cpus", "node", "node-1", "node 0", "gpu0x", "node0,", ",node0", "node0,,node1",
        "cpu,gpu0", "auto,node0", "Node0", "gpu0;gpu1", "node99999999999999999999"}) {
    EXPECT_THAT(refusal(request, machine_with_gpus()), HasSubstr("is not known; give auto, cpu"))
        << request;
  }
  EXPECT_THAT(refusal("node0,gpu1,node0", machine_with_gpus()), HasSubstr("named twice"));
}

TEST(DeviceChoice, nodes_that_cannot_have_a_rank_are_refused) {
  // Node 1 has processors only, node 2 memory only.
  const Topology topology = topology_of(lopsided_machine(), "0-5", "0,2,7");
  EXPECT_THAT(refusal("node2", topology), HasSubstr("node2 has no processors"));
  EXPECT_THAT(refusal("node0,node2", topology), HasSubstr("node0, node1, node7 have"));
  EXPECT_THAT(refusal("node1", topology), HasSubstr("no memory of node1"));
  EXPECT_THAT(choose("node1,node7", topology).nodes, ElementsAre(1, 7));
  // Nodes that this process may not use do not count.
  const Topology confined = topology_of(two_socket_machine(), "0-3", "0");
  EXPECT_THAT(refusal("node1", confined), HasSubstr("node0 has"));
}

TEST(DeviceChoice, gpus_are_asked_for_only_where_one_may_be_chosen) {
  for (const char* request : {"auto", "all", "gpu", "gpu0", "node0,gpu1"}) {
    EXPECT_TRUE(may_choose_gpus(request)) << request;
  }
  for (const char* request : {"cpu", "node0", "node0,node1"}) {
    EXPECT_FALSE(may_choose_gpus(request)) << request;
  }
}

TEST(DeviceChoice, the_space_on_a_gpu_is_what_is_free_less_a_context_and_a_spare) {
  Gpu gpu = simulated_gpu(0, 0);
  EXPECT_EQ(usable_bytes(gpu), 80 * kGiB - kGiB - 80 * kGiB / 50);
  gpu.free_bytes = kGiB;
  EXPECT_EQ(usable_bytes(gpu), 0U);
}

TEST(DeviceChoice, gpus_that_do_not_reach_one_another_are_no_ranks_of_one_split) {
  Topology topology = machine_with_gpus();
  const std::vector<int> all = choose("gpu", topology).gpus;
  ASSERT_EQ(all.size(), topology.gpus.size());
  for (Gpu& gpu : topology.gpus) {
    gpu.links.assign(topology.gpus.size(), GpuLink::kPeer);
  }
  EXPECT_TRUE(check_links(topology, all).has_value());
  topology.gpus[1].links[2] = GpuLink::kHost;
  const auto refused = check_links(topology, all);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(refused.error().message,
              HasSubstr(fmt::format("gpu{} does not reach the memory of gpu{}",
                                    topology.gpus[1].index, topology.gpus[2].index)));
  EXPECT_TRUE(check_links(topology, {all[0], all[1]}).has_value());
}

}  // namespace
}  // namespace lockstep
