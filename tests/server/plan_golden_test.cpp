// Compares the output of `lockstepd plan --json` for simulated machines with tests/goldens/plan.
// LOCKSTEP_UPDATE_GOLDENS=1 writes the files anew (scripts/checks/update_goldens).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/collectives/nccl.h"
#include "engine/machine/device_choice.h"
#include "engine/placement/machine.h"
#include "engine/runtime/gpu/gpu_platform.h"
#include "server/commands/commands.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

constexpr uint64_t kKiB = 1U << 10U;
constexpr uint64_t kMiB = 1U << 20U;

// As fast as the GPU's clock says, less a tenth.
Result<double> measure_gpu(const GpuPlatform&, const Gpu& gpu) {
  return 0.9 * gpu.bytes_per_second;
}

const GpuPlatform kWithoutNccl = {.measure_read = &measure_gpu};
const GpuPlatform kWithNccl = {.join = &NcclRanks::create, .measure_read = &measure_gpu};

// Each worker reads 10 GB/s, on odd nodes 8 GB/s; more than four read no more than four.
Result<std::vector<double>> read_speeds(std::span<const RankPlace> places) {
  std::vector<double> speeds;
  for (const RankPlace& place : places) {
    const double worker = place.node % 2 == 1 ? 8e9 : 1e10;
    speeds.push_back(worker * static_cast<double>(std::min<size_t>(place.cpus.size(), 4)));
  }
  return speeds;
}

// The options and the machine of a plan.
struct Case {
  Case() {
    options.model = source_dir() + "/config/demo.gguf";
    options.instruction_set = "scalar";
    machine.memory.available_bytes = 64 * kGiB;
    machine.settings.transparent_huge_pages = "madvise";
    machine.gpu_platform = &kWithoutNccl;
    machine.meter.read_speeds = &read_speeds;
    set_exchange_seconds(1e-9);
  }

  void set_exchange_seconds(double seconds) {
    machine.meter.exchange_seconds = [seconds](std::span<const RankPlace>,
                                               size_t) -> Result<double> { return seconds; };
  }
  void use_fixture(const std::string& name) {
    options.model = source_dir() + "/tests/fixtures/" + name;
  }
  // Takes these GPUs beside two sockets; all reach one another where `link` is no kHost.
  void use_gpus(std::vector<Gpu> gpus, GpuLink link = GpuLink::kNvlink) {
    machine.topology = topology_of(two_socket_machine(), "0-15", "0-1");
    for (size_t index = 0; index < gpus.size(); ++index) {
      gpus[index].links.assign(gpus.size(), link);
      gpus[index].links[index] = GpuLink::kSelf;
    }
    machine.topology.gpus = std::move(gpus);
    machine.topology.no_gpus = "";
    options.devices = "auto";
  }

  EngineOptions options;
  Machine machine;
  bool measure = true;
};

Case on(Topology topology) {
  Case made;
  for (Node& node : topology.nodes) {
    node.memory_bytes = node.memory_bytes == 0 ? 0 : 16 * kGiB;
    node.free_bytes = node.memory_bytes / 2;
  }
  topology.no_gpus = "none were simulated";
  made.machine.topology = std::move(topology);
  return made;
}

Case on_two_nodes() {
  return on(topology_of(two_socket_machine(), "0-15", "0-1"));
}

Case without_pools() {
  Case made = on_two_nodes();
  for (Node& node : made.machine.topology.nodes) node.pools.clear();
  return made;
}

Gpu slower_gpu(int index, int node) {
  Gpu gpu = simulated_gpu(index, node);
  gpu.name = "Slower GPU";
  gpu.memory_bytes = gpu.free_bytes = 24 * kGiB;
  gpu.bytes_per_second = 0.8e12;
  return gpu;
}

// Leaves ranks exactly `bytes` of the GPU's memory.
Gpu with_memory(Gpu gpu, uint64_t bytes) {
  gpu.free_bytes -= usable_bytes(gpu) - bytes;
  return gpu;
}

// The machine's nodes read as fast as this times read_speeds().
template <int kDivisor>
Result<std::vector<double>> read_slowly(std::span<const RankPlace> places) {
  auto speeds = read_speeds(places);
  for (double& speed : *speeds) speed /= kDivisor;
  return speeds;
}

// A model of which a GPU has space for less than all.
Case for_little_memory() {
  Case made = on_two_nodes();
  made.options.context_tokens = 256;
  made.options.sequence_count = 1;
  made.options.batch_tokens = 32;
  return made;
}

std::string error_json(const Error& error) {
  return to_indented_text(Json{{"error", error.message}, {"exit_code", exit_code(error)}});
}

// Compares with the golden of this name, or writes it.
void check(const std::string& name, const Case& made) {
  const auto plan = plan_machine(made.options, made.machine, made.measure);
  const std::string text = (plan ? plan_json(*plan) : error_json(plan.error())) + "\n";
  const std::filesystem::path path = source_dir() + "/tests/goldens/plan/" + name + ".json";
  const char* const update = std::getenv("LOCKSTEP_UPDATE_GOLDENS");
  if (update != nullptr && std::string_view(update) == "1") {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return;
  }
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(text, golden.str()) << path << ": if that is meant, scripts/checks/update_goldens";
}

TEST(PlanGoldens, nodes_have_the_plans_of_before) {
  check("one_node", on(topology_of(one_node_machine(), "0-3", "0")));
  check("one_processor", on(topology_of(one_node_machine(), "2", "0")));
  check("two_nodes", on_two_nodes());
  check("four_nodes", on(topology_of(sub_node_machine(), "0-7", "0-3")));
  check("eight_nodes", on(topology_of(eight_node_machine(), "0-31", "0-7")));
  check("node_without_memory", on(topology_of(lopsided_machine(), "0-5", "0,2,7")));
  check("memory_of_one_node", on(topology_of(two_socket_machine(), "0-15", "1")));
  check("cpuset_across_nodes", on(topology_of(two_socket_machine(), "2-5,12", "0-1")));
  Case not_measured = on_two_nodes();
  not_measured.measure = false;
  check("not_measured", not_measured);
  Case slow_exchange = on_two_nodes();
  slow_exchange.set_exchange_seconds(1e-4);
  check("one_rank_is_faster", slow_exchange);
}

TEST(PlanGoldens, options_have_the_plans_of_before) {
  Case ranks = on(topology_of(eight_node_machine(), "0-31", "0-7"));
  ranks.options.rank_count = 3;
  ranks.options.worker_count = 2;
  check("three_ranks_of_two_workers", ranks);
  Case shares = on_two_nodes();
  shares.options.shares = {3, 1};
  shares.options.strategy = "reduce";
  shares.options.exchange_format = "bf16";
  check("shares_under_reduce", shares);
  Case measured = on_two_nodes();
  measured.options.measure_shares = true;
  measured.options.kv_format = "q8_0";
  check("measured_shares", measured);
  Case one = on_two_nodes();
  one.options.rank_count = 1;
  one.options.arithmetic = "exact";
  check("one_rank_asked_for", one);
  Case context = on_two_nodes();
  context.options.context_tokens = 100;
  context.options.sequence_count = 3;
  context.options.batch_tokens = 64;
  context.options.logit_rows = 50;
  check("context_and_batch", context);
  for (const auto& [name, member, value] :
       std::vector<std::tuple<std::string, std::string EngineOptions::*, std::string>>{
           {"unknown_kv_format", &EngineOptions::kv_format, "f8"},
           {"unknown_strategy", &EngineOptions::strategy, "tensor"},
           {"unknown_exchange_format", &EngineOptions::exchange_format, "f8"},
           {"unknown_arithmetic", &EngineOptions::arithmetic, "odd"},
           {"unknown_devices", &EngineOptions::devices, "tpu"},
           {"absent_node", &EngineOptions::devices, "node7"},
           {"absent_gpu", &EngineOptions::devices, "gpu0"}}) {
    Case refused = on_two_nodes();
    refused.options.*member = value;
    check(name, refused);
  }
}

TEST(PlanGoldens, limits_have_the_plans_of_before) {
  Case quota = on_two_nodes();
  quota.machine.cpu_limit = 3;
  check("quota_of_three_processors", quota);
  Case limited = without_pools();
  limited.machine.memory.available_bytes = 400 * kMiB;
  check("limited_memory", limited);
  Case crowded = without_pools();
  for (Node& node : crowded.machine.topology.nodes) node.free_bytes = 100 * kMiB;
  check("little_free_memory", crowded);
  Case pools = on_two_nodes();
  pools.machine.memory.available_bytes = 300 * kMiB;
  pools.machine.memory.pools.left_2mib_bytes = 24 * kMiB;
  check("limited_pools", pools);
  Case small = without_pools();
  small.machine.memory.available_bytes = 1 * kMiB;
  check("too_small", small);
  Case long_context = without_pools();
  long_context.machine.memory.available_bytes = 64 * kMiB;
  long_context.options.context_tokens = 100'000;
  check("context_too_long", long_context);
  Case faulty = on_two_nodes();
  faulty.machine.settings.numa_balancing = 1;
  faulty.machine.settings.transparent_huge_pages = "never";
  faulty.machine.settings.governors = {"powersave"};
  check("faulty_settings", faulty);
}

TEST(PlanGoldens, gpus_have_the_plans_of_before) {
  Case one = on_two_nodes();
  one.use_gpus({simulated_gpu(0, 1)});
  check("one_gpu", one);
  Case two = on_two_nodes();
  two.use_gpus({simulated_gpu(0, 0), simulated_gpu(1, 1)});
  check("two_gpus", two);
  Case apart = on_two_nodes();
  apart.use_gpus({simulated_gpu(0, 0), simulated_gpu(1, 1)}, GpuLink::kHost);
  check("gpus_apart_without_nccl", apart);
  apart.machine.gpu_platform = &kWithNccl;
  check("gpus_apart_with_nccl", apart);
  Case layers = on_two_nodes();
  layers.use_gpus({simulated_gpu(0, 0), slower_gpu(1, 1)}, GpuLink::kHost);
  layers.options.strategy = "layers";
  check("layers_of_gpus_apart", layers);
  Case kinds = on_two_nodes();
  kinds.use_gpus({simulated_gpu(0, 0), slower_gpu(1, 1)});
  check("gpus_of_two_kinds", kinds);
  kinds.machine.gpu_platform = nullptr;
  check("gpus_of_two_kinds_by_clock", kinds);
  Case small = on_two_nodes();
  small.use_gpus({with_memory(simulated_gpu(0, 0), 4 * kMiB)});
  check("gpu_too_small", small);
  small.options.devices = "gpu0";
  check("named_gpu_too_small", small);
  Case tight = on_two_nodes();
  tight.use_gpus({with_memory(simulated_gpu(0, 0), 96 * kMiB)});
  check("gpu_of_little_memory", tight);
  Case gather = two;
  gather.options.devices = "gpu";
  gather.options.strategy = "gather";
  check("gpus_under_gather", gather);
}

TEST(PlanGoldens, gpus_beside_nodes_have_the_plans_of_before) {
  Case all = on_two_nodes();
  all.use_gpus({simulated_gpu(0, 0), slower_gpu(1, 1)});
  all.options.devices = "all";
  check("gpus_and_nodes", all);
  Case named = on_two_nodes();
  named.use_gpus({simulated_gpu(0, 0)});
  named.options.devices = "gpu0,node1";
  named.options.shares = {3, 1};
  named.machine.cpu_limit = 4;
  check("gpu_and_node_with_shares", named);
}

// A GPU beside the nodes costs exchanges, which so small a model is worth on slow nodes alone.
TEST(PlanGoldens, models_that_gpus_have_no_space_for_have_the_plans_of_before) {
  Case small = for_little_memory();
  small.use_gpus({with_memory(simulated_gpu(0, 0), 50 * kMiB)});
  check("gpu_idle_beside_faster_nodes", small);
  small.machine.meter.read_speeds = &read_slowly<100>;
  check("gpu_beside_slower_nodes", small);
  Case uneven = for_little_memory();
  uneven.use_gpus(
      {with_memory(simulated_gpu(0, 0), 52 * kMiB), with_memory(simulated_gpu(1, 1), 48 * kMiB)});
  check("gpus_of_uneven_space", uneven);
  Case crowded = for_little_memory();
  crowded.use_gpus({simulated_gpu(0, 0), with_memory(simulated_gpu(1, 1), 0)});
  check("gpu_idle_without_memory", crowded);
}

TEST(PlanGoldens, mixtures_have_the_plans_of_before) {
  Case nodes = on_two_nodes();
  nodes.use_fixture("logits/mixtral-mqa-f32.gguf");
  check("mixture_on_nodes", nodes);
  Case gpu = nodes;
  gpu.use_gpus({simulated_gpu(0, 0)});
  check("mixture_on_a_gpu", gpu);
  gpu.options.devices = "all";
  check("mixture_on_a_gpu_and_nodes", gpu);
  gpu.options.gpu_expert_layers = 0;
  check("mixture_with_all_experts_on_nodes", gpu);
  gpu.options.gpu_expert_layers = 2;
  check("mixture_with_too_many_layers_on_gpus", gpu);
  Case tight = for_little_memory();
  tight.use_fixture("logits/mixtral-mqa-f32.gguf");
  tight.machine.meter.read_speeds = &read_slowly<10000>;
  tight.use_gpus({with_memory(simulated_gpu(0, 0), 8500 * kKiB)});
  check("mixture_with_experts_on_slower_nodes", tight);
  tight.use_gpus({with_memory(simulated_gpu(0, 0), 8420 * kKiB)});
  check("mixture_of_which_the_gpu_has_a_part", tight);
}

}  // namespace
}  // namespace lockstep
