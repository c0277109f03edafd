// How --devices reaches the layout of a model and the words of its plan, on machines made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/device_report.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/gguf_file.h"
#include "engine/model_layout.h"
#include "tests/engine/machine/made_up_gpus.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DevicesTest : public ::testing::Test {
 protected:
  Result<ModelLayout> split(const std::string& devices, const Topology& topology) {
    auto file = GgufFile::open(source_dir() + "/config/demo.gguf");
    if (!file) return std::unexpected(file.error());
    auto model = build_model(*file);
    if (!model) return std::unexpected(model.error());
    EngineOptions options;
    options.devices = devices;
    return split_model(*model, options, **choose_kernel_table(""), topology);
  }

  static std::vector<int> nodes_of(const ModelLayout& layout) {
    std::vector<int> nodes;
    for (const RankPlace& place : layout.places) nodes.push_back(place.node);
    return nodes;
  }
};

TEST_F(DevicesTest, ranks_are_on_the_chosen_nodes_alone) {
  const Topology topology = machine_with_gpus();
  const auto both = split("cpu", topology);
  ASSERT_TRUE(both.has_value()) << both.error().message;
  EXPECT_THAT(nodes_of(*both), ElementsAre(0, 1));
  const auto one = split("node1", topology);
  ASSERT_TRUE(one.has_value()) << one.error().message;
  EXPECT_THAT(nodes_of(*one), ElementsAre(1));
  for (const int cpu : one->places[0].cpus) EXPECT_TRUE(cpu >= 4 && cpu < 8) << cpu;
}

TEST_F(DevicesTest, gpus_are_refused_by_name_and_explained_by_default) {
  const Topology topology = machine_with_gpus();
  const auto refused = split("gpu0", topology);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(refused.error().message, HasSubstr("cannot compute on GPUs yet (gpu0)"));
  const auto automatic = split("auto", topology);
  ASSERT_TRUE(automatic.has_value()) << automatic.error().message;
  EXPECT_THAT(nodes_of(*automatic), ElementsAre(0, 1));
  EXPECT_THAT(automatic->devices.reason, HasSubstr("though the model fits on all GPUs"));
}

TEST_F(DevicesTest, a_model_that_does_not_fit_on_the_gpus_is_said_not_to) {
  Topology topology = machine_with_gpus();
  topology.gpus[3].free_bytes = 1U << 16U;
  const auto layout = split("auto", topology);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_THAT(layout->devices.reason, HasSubstr("the model does not fit on all GPUs"));
  EXPECT_THAT(layout->devices.reason, HasSubstr("gpu3 has 0.0 GiB free"));
}

TEST_F(DevicesTest, the_plan_tells_gpus_their_links_and_the_choice) {
  Topology topology = machine_with_gpus();
  topology.gpus.erase(topology.gpus.begin());  // indices are not places in the list
  for (Gpu& gpu : topology.gpus) gpu.links.erase(gpu.links.begin());
  MachinePlan plan;
  describe_devices(topology, *choose_devices("gpu1,node1", topology, 0), plan);
  ASSERT_EQ(plan.gpus.size(), 3U);
  const MachinePlan::Gpu& gpu = plan.gpus[1];
  EXPECT_EQ(gpu.index, 2);
  EXPECT_EQ(gpu.node, 1);
  EXPECT_EQ(gpu.compute_capability, "9.0");
  EXPECT_EQ(gpu.free_bytes, 80 * kGiB);
  std::vector<std::string> links;
  for (const auto& path : gpu.links) links.push_back(fmt::format("gpu{} {}", path.gpu, path.link));
  EXPECT_THAT(links, ElementsAre("gpu1 peer access", "gpu3 NVLink"));
  EXPECT_EQ(plan.devices.names, "gpu1, node1");
  EXPECT_THAT(plan.devices.reason, HasSubstr("--devices gpu1,node1"));
  EXPECT_EQ(plan.no_gpus, "");
}

TEST_F(DevicesTest, the_plan_of_a_machine_without_gpus_tells_why_there_are_none) {
  Topology topology = machine_with_gpus();
  topology.gpus.clear();
  topology.no_gpus = "somebody took them";
  MachinePlan plan;
  describe_devices(topology, *choose_devices("auto", topology, 0), plan);
  EXPECT_EQ(plan.no_gpus, "somebody took them");
  EXPECT_EQ(plan.devices.names, "node0, node1");
  EXPECT_EQ(plan.devices.reason, "there is no GPU: somebody took them");
}

TEST_F(DevicesTest, the_engine_computes_on_this_machines_named_node) {
  const Topology topology = read_topology();
  int node = -1;
  for (const Cpu& cpu : topology.cpus) {
    if (topology.find_node(cpu.node)->has_usable_memory()) node = std::max(node, cpu.node);
  }
  if (node < 0) GTEST_SKIP() << "no node has processors and memory that this process may use";
  EngineOptions options;
  options.model = source_dir() + "/config/demo.gguf";
  options.context_tokens = 64;
  options.rank_count = 2;
  options.worker_count = 1;
  options.devices = fmt::format("node{}", node);
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  const auto loaded = (*engine)->load();
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  const auto ranks = (*engine)->statistics().ranks;
  ASSERT_EQ(ranks.size(), 2U);
  for (const RankStatistics& rank : ranks) {
    EXPECT_EQ(rank.node, node);
    EXPECT_EQ(rank.wrong_node_bytes.value_or(0), 0U);
  }
  for (const char* devices : {"node99", "gpu0", "gpu"}) {
    options.devices = devices;
    const auto refused = Engine::open(options);
    ASSERT_FALSE(refused.has_value()) << devices;
    EXPECT_EQ(exit_code(refused.error()), 2) << refused.error().message;
    const auto planned = plan_machine(options, /*measure=*/false);
    ASSERT_FALSE(planned.has_value()) << devices;
    EXPECT_EQ(planned.error().message, refused.error().message);
  }
}

}  // namespace
}  // namespace lockstep
