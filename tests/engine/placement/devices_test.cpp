// How --devices reaches the layout of a model and the words of its plan, on simulated machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/kernels/gpu_tile.h"
#include "engine/kernels/kernel_table.h"
#include "engine/measure/plan_report.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/model_info.h"
#include "engine/placement/model_layout.h"
#include "tests/engine/placement/devices_case.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST_F(DevicesTest, a_gpu_is_one_rank_with_its_own_arithmetic_and_layout) {
  const Topology topology = machine_with_gpus();
  for (const char* arithmetic : {"auto", "exact", "fast"}) {
    options_.arithmetic = arithmetic;
    const auto layout = split("gpu2", topology);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    ASSERT_EQ(layout->places.size(), 1U);
    EXPECT_EQ(layout->places[0].device, on_gpu(2));
    EXPECT_EQ(layout->places[0].node, 1);
    EXPECT_EQ(layout->arithmetic, "gpu");
    EXPECT_EQ(layout->instruction_set, "sm_90");
    EXPECT_EQ(layout->device_titles, "gpu2 Simulated GPU");
    EXPECT_EQ(layout->options_of(0).target, &gpu_plan_target());
    EXPECT_EQ(layout->plan_options.sequences, options_.sequence_count);
    for (size_t format = 0; format < kFormatCount; ++format) {
      const auto own = static_cast<Format>(format) == Format::kF32 ? ActivationForm::kF32
                                                                   : ActivationForm::kBf16;
      EXPECT_EQ(layout->plan_options.forms[format].prompted, own);
      EXPECT_EQ(layout->plan_options.forms[format].generated, own);
    }
  }
}

TEST_F(DevicesTest, on_processors_nothing_is_as_on_gpus) {
  const auto layout = split("cpu", machine_with_gpus());
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_EQ(layout->options_of(0).target, &node_plan_target());
  EXPECT_EQ(layout->device_titles, "node0, node1");
  EXPECT_EQ(layout->arithmetic, "fast");
  for (const RankPlace& place : layout->places) EXPECT_EQ(place.device, on_node());
}

TEST_F(DevicesTest, by_default_every_gpu_computes_where_they_reach_one_another) {
  const auto one = split("auto", machine_with_one_gpu());
  ASSERT_TRUE(one.has_value()) << one.error().message;
  EXPECT_EQ(one->places[0].device, on_gpu(3));
  EXPECT_THAT(one->devices.reason, HasSubstr("the model fits on all GPUs"));
  const auto apart = split("auto", machine_with_gpus());
  ASSERT_TRUE(apart.has_value()) << apart.error().message;
  EXPECT_THAT(apart->devices.gpus, ElementsAre(0, 1));
  EXPECT_THAT(apart->devices.reason,
              HasSubstr("2 of 4 GPUs, since gpu0 does not reach the memory of gpu2"));
  const auto linked = split("auto", machine_with_linked_gpus());
  ASSERT_TRUE(linked.has_value()) << linked.error().message;
  EXPECT_EQ(linked->places.size(), 4U);
  EXPECT_EQ(linked->split.strategy, Strategy::kReduce);
  for (size_t rank = 0; rank < linked->places.size(); ++rank) {
    EXPECT_EQ(linked->places[rank].device, on_gpu(static_cast<int>(rank)));
  }
  EXPECT_TRUE(sized_.has_value()) << sized_.error().message;
}

// Their sums then go by NCCL, which takes memory of its own.
TEST_F(DevicesTest, gpus_that_do_not_reach_one_another_are_ranks_of_one_split_with_nccl) {
  GpuPlatform with_nccl;
  with_nccl.join = &NcclRanks::create;
  platform_ = &with_nccl;
  for (const char* devices : {"auto", "gpu"}) {
    const auto apart = split(devices, machine_with_gpus());
    ASSERT_TRUE(apart.has_value()) << apart.error().message;
    EXPECT_EQ(apart->places.size(), 4U);
    EXPECT_THAT(apart->devices.reason, HasSubstr("so sums go by NCCL"));
    EXPECT_GE(apart->nccl_bytes, kNcclBytes);
  }
  Topology tight = machine_with_gpus();
  for (Gpu& gpu : tight.gpus) gpu.free_bytes = gpu.free_bytes - usable_bytes(gpu) + kNcclBytes;
  ASSERT_TRUE(split("gpu", tight).has_value());
  ASSERT_FALSE(sized_.has_value());
  EXPECT_EQ(sized_.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(sized_.error().message, HasSubstr("MiB for NCCL on gpu0"));
  const auto crowded = split("auto", tight);
  ASSERT_TRUE(crowded.has_value()) << crowded.error().message;
  EXPECT_THAT(crowded->devices.gpus, ElementsAre(0, 1));  // which need no NCCL
  EXPECT_EQ(crowded->nccl_bytes, 0U);
  EXPECT_THAT(crowded->devices.reason,
              HasSubstr("2 of 4 GPUs, since the model does not fit on all GPUs"));
  EXPECT_THAT(crowded->devices.reason, HasSubstr("for NCCL"));
  // Small sums between GPUs that are linked need none of it, nor does a GPU alone.
  for (const char* devices : {"gpu0,gpu1", "gpu2"}) {
    const auto linked = split(devices, machine_with_linked_gpus());
    ASSERT_TRUE(linked.has_value()) << linked.error().message;
    EXPECT_EQ(linked->nccl_bytes, 0U);
    EXPECT_THAT(linked->devices.reason, Not(HasSubstr("NCCL")));
  }
}

// The nodes' ranks have what processors the GPUs' leave, and layout and arithmetic of their own.
TEST_F(DevicesTest, gpus_and_nodes_are_ranks_of_one_split) {
  options_.shares = {2, 1, 1};
  const auto layout = split("gpu3,node0,node1", machine_with_one_gpu());
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
  ASSERT_EQ(layout->places.size(), 3U);
  EXPECT_EQ(layout->gpu_places().size(), 1U);
  EXPECT_EQ(layout->places[0].device, on_gpu(3));
  EXPECT_EQ(layout->places[1].device, on_node());
  EXPECT_EQ(layout->split.strategy, Strategy::kReduce);
  EXPECT_EQ(layout->options_of(0).target, &gpu_plan_target());
  EXPECT_EQ(layout->options_of(1).target, &node_plan_target());
  EXPECT_EQ(layout->device_titles, "gpu3 Simulated GPU, node0, node1");
  EXPECT_GT(layout->sizes[0].weight_bytes, 3 * layout->sizes[1].weight_bytes / 2);
  EXPECT_EQ(layout->sizes[0].exchange_bytes, layout->sizes[1].exchange_bytes);
  const int driver = layout->places[0].cpus[0];
  for (size_t rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(std::ranges::count(layout->places[rank].cpus, driver), 0);
  }
  options_.shares.clear();
  Topology silent = machine_with_one_gpu();
  silent.gpus[0].bytes_per_second = 0;
  silent.gpus[0].free_bytes = 0;  // nor can it be measured
  expect_refusal("all", silent, "gpu3 does not say how fast its memory is: give the ranks' shares");
}

// That lies in the host's memory for all of them, and takes no space on the GPU from the cache.
TEST_F(DevicesTest, what_a_gpu_exchanges_with_processors_is_counted_as_the_hosts) {
  options_.shares = {2, 1, 1};
  Topology topology = machine_with_one_gpu();
  const auto roomy = split("gpu3,node0,node1", topology);
  ASSERT_TRUE(roomy.has_value() && sized_.has_value());
  const RankSizes& sizes = roomy->sizes[0];
  EXPECT_GT(sizes.exchange_bytes, 0U);
  EXPECT_EQ(sizes.host_bytes(), sizes.exchange_bytes + sizes.logits_bytes);
  EXPECT_EQ(roomy->sizes[1].gpu_bytes(), 0U);
  Gpu& gpu = topology.gpus[0];
  gpu.free_bytes -= usable_bytes(gpu) - sizes.gpu_bytes();
  const auto tight = split("gpu3,node0,node1", topology);
  ASSERT_TRUE(tight.has_value() && sized_.has_value()) << sized_.error().message;
  EXPECT_EQ(tight->plan_options.kv_pages, roomy->plan_options.kv_pages);
  // Among GPUs alone it lies in theirs.
  options_.shares.clear();
  const auto gpus = split("gpu", machine_with_linked_gpus());
  ASSERT_TRUE(gpus.has_value() && sized_.has_value());
  EXPECT_GT(gpus->sizes[1].exchange_bytes, 0U);
  EXPECT_EQ(gpus->sizes[1].host_bytes(), 0U);
}

TEST_F(DevicesTest, one_gpu_has_nothing_to_sum) {
  options_.strategy = "reduce";
  const auto layout = split("gpu3", machine_with_one_gpu());
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_EQ(layout->split.strategy, Strategy::kGather);
}

TEST_F(DevicesTest, what_gpus_cannot_do_is_refused_by_name_and_explained_by_default) {
  const Topology topology = machine_with_one_gpu();
  expect_refusal("gpu", machine_with_gpus(), "gpu0 does not reach the memory of gpu2");
  options_.strategy = "gather";
  expect_refusal("all", topology, "gpu3, node0, node1 sum their parts");
  expect_refusal("gpu", machine_with_linked_gpus(), "gpu0, gpu1, gpu2, gpu3 sum their parts");
  EXPECT_TRUE(split("gpu3", topology).has_value());
  options_.strategy = "auto";
  options_.rank_count = 1;
  expect_refusal("all", topology, "and nodes are to have some");
  options_.rank_count = 2;
  expect_refusal("gpu3", topology, "ranks is 2, but each GPU is one rank");
  const auto automatic = split("auto", topology);
  ASSERT_TRUE(automatic.has_value()) << automatic.error().message;
  EXPECT_THAT(nodes_of(*automatic), ElementsAre(0, 1));
  EXPECT_THAT(automatic->devices.reason, HasSubstr("no GPU, since ranks is 2"));
  options_.rank_count = 1;
  EXPECT_TRUE(split("gpu3", topology).has_value());
  options_.shares = {1, 2};
  expect_refusal("gpu3", topology, "shares 1:2 are for 2 ranks, but there are 1");
}

TEST_F(DevicesTest, a_model_that_does_not_fit_on_the_gpu_is_said_not_to) {
  Topology topology = machine_with_one_gpu();
  topology.gpus[0].free_bytes = 1U << 16U;
  const auto layout = split("auto", topology);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_THAT(nodes_of(*layout), ElementsAre(0, 1));
  EXPECT_THAT(layout->devices.reason, HasSubstr("the model does not fit on all GPUs"));
  EXPECT_THAT(layout->devices.reason, HasSubstr("space for 0.0 GiB (gpu3 0.0)"));
  ASSERT_TRUE(split("gpu3", topology).has_value());
  ASSERT_FALSE(sized_.has_value());
  EXPECT_EQ(sized_.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(sized_.error().message, HasSubstr("on gpu3, where 0 MiB are available"));
}

TEST_F(DevicesTest, a_context_that_is_asked_for_counts_when_the_gpu_is_weighed) {
  Topology topology = machine_with_one_gpu();
  options_.context_tokens = 256;
  options_.sequence_count = 4;
  const auto fitting = split("auto", topology);
  ASSERT_TRUE(fitting.has_value()) << fitting.error().message;
  ASSERT_FALSE(fitting->gpu_places().empty());
  options_.context_tokens = 1U << 30U;
  const auto misfit = split("auto", topology);
  ASSERT_TRUE(misfit.has_value()) << misfit.error().message;
  EXPECT_TRUE(misfit->gpu_places().empty()) << misfit->devices.reason;
}

// All that is left on the GPU is the cache's; half of it was left to others on a node.
TEST_F(DevicesTest, the_context_fills_the_space_that_the_weights_leave_on_the_gpu) {
  Topology topology = machine_with_one_gpu();
  options_.sequence_count = 64;
  options_.batch_tokens = 512;
  Gpu& gpu = topology.gpus[0];
  const auto roomy = split("gpu3", topology);
  ASSERT_TRUE(roomy.has_value() && sized_.has_value());
  EXPECT_EQ(roomy->context_tokens, trained_tokens_);
  const RankSizes& sizes = roomy->sizes[0];
  const uint64_t kept = gpu.free_bytes - usable_bytes(gpu);
  // Space for half of the cache.
  gpu.free_bytes = kept + sizes.gpu_bytes() - sizes.kv_bytes / 2;
  const auto tight = split("gpu3", topology);
  ASSERT_TRUE(tight.has_value() && sized_.has_value()) << sized_.error().message;
  EXPECT_LE(tight->sizes[0].gpu_bytes(), usable_bytes(gpu));
  EXPECT_LT(tight->plan_options.kv_pages, roomy->plan_options.kv_pages);
  options_.context_tokens = static_cast<uint32_t>(tight->context_tokens);
  options_.kv_pages = static_cast<uint32_t>(tight->plan_options.kv_pages + 1);
  ASSERT_TRUE(split("gpu3", topology).has_value());
  EXPECT_FALSE(sized_.has_value()) << "one page more fits as well";
  options_.context_tokens = options_.kv_pages = 0;
  // All but a byte of what one page needs.
  gpu.free_bytes = kept + least_bytes("gpu3", topology, 0) - 1;
  ASSERT_TRUE(split("gpu3", topology).has_value());
  ASSERT_FALSE(sized_.has_value());
  EXPECT_THAT(sized_.error().message, HasSubstr("nothing is left for a context"));
}

TEST_F(DevicesTest, of_several_gpus_the_one_that_is_too_small_is_named) {
  Topology topology = machine_with_linked_gpus();
  options_.sequence_count = 64;
  options_.batch_tokens = 512;
  Gpu& gpu = topology.gpus[2];
  gpu.free_bytes -= usable_bytes(gpu) - (least_bytes("gpu1,gpu2", topology, 1) - 1);
  ASSERT_TRUE(split("gpu1,gpu2", topology).has_value());
  ASSERT_FALSE(sized_.has_value());
  EXPECT_THAT(sized_.error().message, HasSubstr("rank 1 needs"));
  EXPECT_THAT(sized_.error().message, HasSubstr("on gpu2"));
  EXPECT_THAT(sized_.error().message, HasSubstr("nothing is left for a context"));
}

TEST_F(DevicesTest, the_plan_of_a_gpu_tells_its_space_and_the_speed_its_memory_would_give) {
  const Machine machine = this_machine_with(machine_with_one_gpu().gpus);
  options_.devices = "gpu3";
  speeds_ = {{3, 2e12}};
  const auto plan = plan_machine(options_, machine, /*measure=*/true);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->ranks.size(), 1U);
  const MachinePlan::Rank& rank = plan->ranks[0];
  EXPECT_EQ(rank.gpu, 3);
  EXPECT_EQ(rank.available_bytes, usable_bytes(machine.topology.gpus[0]));
  EXPECT_EQ(rank.bytes_per_second, 2e12);
  EXPECT_GT(rank.read_bytes, 0U);
  EXPECT_DOUBLE_EQ(plan->tokens_per_second, 2e12 / static_cast<double>(rank.read_bytes));
  EXPECT_EQ(plan->instruction_set, "sm_90");
  EXPECT_EQ(plan->arithmetic, "gpu");
  EXPECT_EQ(plan->devices.names, "gpu3");
}

// All that the search for the context has counted, and no more.
TEST_F(DevicesTest, the_plan_lists_all_that_a_rank_takes_of_its_gpu) {
  GpuPlatform with_nccl;
  with_nccl.join = &NcclRanks::create;
  platform_ = &with_nccl;
  const auto names_of = [](const MachinePlan::Rank& rank) {
    std::vector<std::string> names;
    for (const MachinePlan::Need& need : rank.other_needs) names.push_back(need.what);
    return names;
  };
  for (const bool linked : {true, false}) {
    const Topology topology = linked ? machine_with_linked_gpus() : machine_with_gpus();
    const auto layout = split("gpu", topology);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    const auto plan = plan_machine(options_, this_machine_with(topology.gpus), /*measure=*/false);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    for (size_t rank = 0; rank < plan->ranks.size(); ++rank) {
      const MachinePlan::Rank& told = plan->ranks[rank];
      uint64_t bytes = told.weight_bytes + told.kv_bytes + told.scratch_bytes;
      for (const MachinePlan::Need& need : told.other_needs) bytes += need.bytes;
      EXPECT_EQ(bytes, layout->sizes[rank].gpu_bytes() + layout->nccl_bytes) << rank;
      EXPECT_THAT(names_of(told), ElementsAre("its load", "recordings of passes",
                                              linked ? "sums over peer memory" : "NCCL"));
    }
  }
  options_.devices = "cpu";
  const auto plan = plan_machine(options_, this_machine_with(machine_with_one_gpu().gpus),
                                 /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  for (const MachinePlan::Rank& rank : plan->ranks) EXPECT_TRUE(rank.other_needs.empty());
}

// The format is named, and nodes are taken where devices are free.
TEST_F(DevicesTest, a_cache_that_gpus_have_no_kernels_for_takes_every_node) {
  const Topology topology = machine_with_one_gpu();
  for (const auto& [keys, values, name] : {std::tuple("q4_h", "q4_h", "q4_h"),
                                           {"q4_0", "q4_0", "q4_0"},
                                           {"f16", "q8_0", "f16/q8_0"}}) {
    options_.kv_key_format = keys;
    options_.kv_value_format = values;
    const std::string said = fmt::format("GPUs have no kernels for KV format {}", name);
    const auto chosen = split("auto", topology);
    ASSERT_TRUE(chosen.has_value()) << chosen.error().message;
    EXPECT_THAT(chosen->devices.gpus, ::testing::IsEmpty());
    EXPECT_THAT(chosen->devices.reason, HasSubstr("no GPU, since " + said));
    for (const char* const devices : {"gpu", "all"}) {
      options_.shares = {1, 1};
      const auto asked = split(devices, topology);
      ASSERT_FALSE(asked.has_value()) << devices;
      EXPECT_EQ(asked.error().kind, ErrorKind::kInvalidInput);
      EXPECT_THAT(asked.error().message, HasSubstr(said));
      EXPECT_THAT(asked.error().message, HasSubstr("or --devices cpu"));
      options_.shares = {};
    }
  }
  options_.kv_key_format = options_.kv_value_format = "q8_0";
  EXPECT_THAT(split("auto", topology)->devices.gpus, ElementsAre(3));
}

// The operation is named, by the placement (and so in the log) and by the plan.
TEST_F(DevicesTest, a_graph_with_steps_that_gpus_have_no_kernel_for_takes_every_node) {
  const Topology topology = machine_with_one_gpu();
  const auto fused = split("auto", topology);
  ASSERT_TRUE(fused.has_value()) << fused.error().message;
  EXPECT_THAT(fused->devices.gpus, ElementsAre(3));
  options_.model = source_dir() + "/tests/fixtures/families/lfm2.gguf";
  const auto plain = split("auto", topology);
  ASSERT_TRUE(plain.has_value()) << plain.error().message;
  EXPECT_THAT(plain->devices.gpus, ::testing::IsEmpty());
  EXPECT_THAT(plain->devices.reason,
              HasSubstr("no GPU, since GPUs have no kernel for this plan's causal convolution"));
  options_.devices = "auto";
  const auto plan = plan_machine(options_, this_machine_with(topology.gpus), /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_THAT(plan->devices.reason, HasSubstr("no kernel for this plan's causal convolution"));
  const auto asked = split("gpu", topology);
  ASSERT_FALSE(asked.has_value());
  EXPECT_EQ(asked.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(asked.error().message, HasSubstr("use --devices cpu"));
}

TEST(GpuGraph, heads_that_gpus_cannot_read_in_pieces_are_refused) {
  for (const auto& [dimension, fits] :
       std::map<size_t, bool>{{8, true}, {64, true}, {100, false}, {512, true}, {520, false}}) {
    for (const bool is_value : {false, true}) {
      Graph graph;
      const ValueId x = graph.embed(graph.add_matrix("table", Format::kF16, 10, dimension));
      const ValueId other = graph.embed(graph.add_matrix("other", Format::kF16, 10, 64));
      const ValueId key = is_value ? other : x;
      graph.attention(0, key, key, is_value ? x : other, 1, 1, {.scale = 1.0F});
      const auto checked = check_gpu_graph(graph, {}, GpuCompany::kGpus);
      EXPECT_EQ(checked.has_value(), fits) << dimension;
      if (checked) continue;
      EXPECT_EQ(checked.error().kind, ErrorKind::kInvalidInput);
      EXPECT_THAT(checked.error().message, HasSubstr(fmt::format("have {} dimensions", dimension)));
      EXPECT_THAT(checked.error().message, HasSubstr("--devices cpu"));
    }
  }
}

TEST(GpuGraph, matrices_in_formats_without_kernels_are_refused_and_vectors_in_them_are_not) {
  const auto graph_with = [](Format matrix, Format vector) {
    Graph graph;
    const ValueId x = graph.embed(graph.add_matrix("table", matrix, 64, 256));
    graph.rms_norm(x, graph.add_vector("norm", vector, 256), 1e-5F);
    return graph;
  };
  for (const FormatTraits& format : all_formats()) {
    const Graph of_vector = graph_with(Format::kF16, format.format);
    EXPECT_TRUE(check_gpu_graph(of_vector, {}, GpuCompany::kGpus).has_value()) << format.name;
    const Graph of_matrix = graph_with(format.format, Format::kF32);
    for (const GpuCompany company : {GpuCompany::kNobody, GpuCompany::kGpus, GpuCompany::kNodes}) {
      const auto checked = check_gpu_graph(of_matrix, {}, company);
      EXPECT_EQ(checked.has_value(), has_gpu_kernels(format.format)) << format.name;
      if (checked) continue;
      EXPECT_EQ(checked.error().kind, ErrorKind::kInvalidInput);
      EXPECT_THAT(checked.error().message,
                  HasSubstr(fmt::format("tensor table is in {}", format.name)));
      EXPECT_THAT(checked.error().message, HasSubstr("--devices cpu"));
    }
  }
}

TEST(GpuGraph, more_experts_of_a_token_than_a_warp_has_lanes_are_refused_but_beside_nodes) {
  for (const auto& [chosen, fits] : std::map<size_t, bool>{{2, true}, {32, true}, {33, false}}) {
    Graph graph;
    const ValueId x = graph.embed(graph.add_matrix("table", Format::kF16, 10, 64));
    graph.route(graph.matmul(x, graph.add_matrix("router", Format::kF32, 40, 64)), chosen);
    EXPECT_TRUE(check_gpu_graph(graph, {}, GpuCompany::kNodes).has_value());
    const auto checked = check_gpu_graph(graph, {}, GpuCompany::kGpus);
    EXPECT_EQ(checked.has_value(), fits) << chosen;
    if (checked) continue;
    EXPECT_EQ(checked.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(checked.error().message, HasSubstr("a token goes to 33 experts"));
    EXPECT_THAT(checked.error().message, HasSubstr("use --devices all"));
  }
}

TEST_F(DevicesTest, the_fingerprint_of_a_mixture_tells_how_its_experts_are_cut) {
  options_.model = source_dir() + "/tests/fixtures/logits/mixtral-mqa-f32.gguf";
  const auto file = GgufFile::open(options_.model);
  const auto model = build_model({.file = *file});
  const auto fingerprint = [&](const std::vector<double>& shares) {
    options_.shares = shares;
    const auto layout = split("gpu3,node0,node1", machine_with_one_gpu());
    EXPECT_TRUE(layout.has_value()) << layout.error().message;
    return layout ? describe_model(*file, *model, options_, *layout).fingerprint : "";
  };
  const std::string even = fingerprint({1, 1, 1});
  EXPECT_EQ(fingerprint({3, 2, 2}), even);
  EXPECT_NE(fingerprint({1, 3, 2}), even);
}

// Whatever a token reads of the experts is the nodes', all else the GPU's.
TEST_F(DevicesTest, of_a_mixture_nodes_have_the_experts_and_the_gpu_all_else) {
  options_.model = source_dir() + "/tests/fixtures/logits/mixtral-mqa-f32.gguf";
  options_.shares = {1, 1, 1};
  options_.gpu_expert_layers = 0;
  const auto layout = split("gpu3,node0,node1", machine_with_one_gpu());
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  ASSERT_TRUE(sized_.has_value()) << sized_.error().message;
  EXPECT_THAT(layout->devices.reason, HasSubstr("the nodes have the experts"));
  EXPECT_EQ(layout->places[0].expert_share, 0);
  EXPECT_GT(layout->places[0].share, 0);
  const auto file = GgufFile::open(options_.model);
  const auto model = build_model({.file = *file});
  for (size_t rank = 0; rank < 3; ++rank) {
    const Plan plan = make_plan(model->graph, layout->split, rank, layout->options_of(rank));
    const bool is_gpu = rank == 0;
    EXPECT_EQ(layout->sizes[rank].kv_bytes > 0, is_gpu);
    for (const GraphNode& node : model->graph.nodes()) {
      for (const WeightId expert : node.experts) {
        EXPECT_EQ(plan.weights[expert].size_bytes > 0, !is_gpu) << rank;
      }
      if (node.operation != Operation::kMatmul) continue;
      const Weight& weight = model->graph.weights()[node.weight];
      const bool is_router = weight.name.find("ffn_gate_inp") != weight.name.npos;
      EXPECT_EQ(plan.weights[node.weight].size_bytes > 0, is_gpu != is_router) << weight.name;
    }
  }
  options_.shares.clear();
  options_.gpu_expert_layers.reset();
  const auto automatic = split("auto", machine_with_one_gpu());
  ASSERT_TRUE(automatic.has_value()) << automatic.error().message;
  EXPECT_TRUE(automatic->node_places().empty());
  EXPECT_EQ(automatic->places[0].expert_share, std::nullopt);
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
  const GpuReading gpus = read_gpus();
  std::map<std::string, int> absent = {{"node99", 2}};
  if (gpus.gpus.empty()) absent["gpu0"] = absent["gpu"] = gpus.possible ? 1 : 2;
  for (const auto& [devices, code] : absent) {
    options.devices = devices;
    const auto refused = Engine::open(options);
    ASSERT_FALSE(refused.has_value()) << devices;
    EXPECT_EQ(exit_code(refused.error()), code) << refused.error().message;
    const auto planned = plan_machine(options, /*measure=*/false);
    ASSERT_FALSE(planned.has_value()) << devices;
    EXPECT_EQ(planned.error().message, refused.error().message);
  }
}

// cuBLASLt is no part of a driver. Nodes compute without it, and who asks for a GPU is told.
TEST_F(DevicesTest, without_the_gpus_library_for_matrices_nodes_compute_and_the_reason_is_told) {
  GpuPlatform without_library = without_nccl_;
  without_library.find_matrix_library = []() -> Result<void> {
    return machine_refused("libcublas is missing: install it");
  };
  Machine machine = this_machine_with({simulated_gpu(0, -1), simulated_gpu(1, -1)});
  EXPECT_EQ(usable_platform(&without_library, machine.topology), nullptr);
  EXPECT_TRUE(machine.topology.gpus.empty());
  const auto nodes = choose_devices("auto", machine.topology, 1);
  ASSERT_TRUE(nodes.has_value()) << nodes.error().message;
  EXPECT_FALSE(nodes->nodes.empty());
  EXPECT_EQ(nodes->reason,
            "there is no GPU: the 2 that the driver shows cannot be used: libcublas is missing: "
            "install it");
  const auto refused = choose_devices("gpu0", machine.topology, 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("libcublas is missing: install it"));
  Machine whole = this_machine_with({simulated_gpu(0, -1)});
  without_library.find_matrix_library = []() -> Result<void> { return {}; };
  EXPECT_EQ(usable_platform(&without_library, whole.topology), &without_library);
  EXPECT_EQ(whole.topology.gpus.size(), 1U);
}

// NCCL may be in the build, and not on the machine.
TEST_F(DevicesTest, gpus_apart_are_refused_where_nccl_is_missing_and_the_reason_is_told) {
  GpuPlatform platform;
  platform.join = &NcclRanks::create;
  platform.join_absence = []() -> std::string { return "without NCCL (nowhere): install it"; };
  platform_ = &platform;
  options_.devices = "gpu0,gpu1";
  Machine machine = this_machine_with({simulated_gpu(0, -1), simulated_gpu(1, -1)});
  for (Gpu& gpu : machine.topology.gpus) gpu.links.assign(2, GpuLink::kHost);
  const auto refused = Engine::open(options_, machine);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message,
              HasSubstr("which ranks that are GPUs need without NCCL (nowhere): install it, or"));
}

// A service manager tries again after exit code 1, until the GPU is back, and not after 2.
TEST_F(DevicesTest,
       a_gpu_that_is_not_there_is_the_machines_refusal_and_a_name_that_is_none_is_not) {
  const Machine machine = this_machine_with({simulated_gpu(0, -1)});
  for (const auto& [devices, code] :
       std::map<std::string, int>{{"gpu1", 1}, {"gpu0,gpu1", 1}, {"gpux", 2}, {"gpu1,node99", 2}}) {
    options_.devices = devices;
    const auto refused = Engine::open(options_, machine);
    ASSERT_FALSE(refused.has_value()) << devices;
    EXPECT_EQ(exit_code(refused.error()), code) << refused.error().message;
  }
}

}  // namespace
}  // namespace lockstep
