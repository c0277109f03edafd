// Plans as text: the whole plans of small graphs against goldens under tests/goldens/plan_text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "engine/operations/plan.h"
#include "tests/engine/planner/plan_case.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

RankPlace place_of(bool on_gpu) {
  RankPlace place;
  place.cpus = {-1, -1};
  if (on_gpu) place = {.node = -1, .cpus = {-1}, .device = GpuPlace{0}};
  return place;
}

struct PlanCase {
  std::string name;
  std::vector<Plan> plans;  // by rank
};

// A dense model and a mixture over one rank and two, under both strategies, on nodes and on GPUs.
std::vector<PlanCase> all_cases() {
  std::vector<PlanCase> cases;
  for (const bool is_mixture : {false, true}) {
    const Graph graph = make_graph(Format::kQ8_0, is_mixture);
    const auto add = [&](const std::string& name, bool on_gpu, size_t rank_count,
                         Strategy strategy) {
      const Split split = split_evenly(graph, rank_count, strategy);
      const PlanOptions options = options_on(place_of(on_gpu), kOptions);
      PlanCase& added = cases.emplace_back();
      added.name = (is_mixture ? "mixture_" : "dense_") + name;
      for (size_t rank = 0; rank < rank_count; ++rank) {
        added.plans.push_back(make_plan(graph, split, rank, options));
      }
    };
    add("node", false, 1, Strategy::kGather);
    add("nodes_gather", false, 2, Strategy::kGather);
    add("nodes_reduce", false, 2, Strategy::kReduce);
    add("nodes_layers", false, 2, Strategy::kLayers);
    add("gpu", true, 1, Strategy::kGather);
    add("gpus_reduce", true, 2, Strategy::kReduce);
    add("gpus_layers", true, 2, Strategy::kLayers);
  }
  return cases;
}

TEST(PlanText, is_that_of_before) {
  const char* const update = std::getenv("LOCKSTEP_UPDATE_GOLDENS");
  for (const PlanCase& each : all_cases()) {
    std::string text;
    for (const Plan& plan : each.plans) text += plan_text(plan);
    const std::filesystem::path path =
        std::filesystem::path(source_dir()) / "tests/goldens/plan_text" / (each.name + ".txt");
    if (update != nullptr && std::string_view(update) == "1") {
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path) << text;
      continue;
    }
    std::ifstream file(path);
    const std::string golden((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(text, golden) << path << "; if that is meant: scripts/checks/update_goldens";
  }
}

// A plan holds no address: made twice, it is equal, and so is its text.
TEST(PlanText, is_equal_for_equal_plans_and_for_no_others) {
  std::vector<Plan> plans;
  for (int round = 0; round < 2; ++round) {
    for (const PlanCase& each : all_cases()) {
      plans.insert(plans.end(), each.plans.begin(), each.plans.end());
    }
  }
  const size_t different = plans.size() / 2;
  for (size_t one = 0; one < plans.size(); ++one) {
    for (size_t other = 0; other < plans.size(); ++other) {
      const bool is_same = one % different == other % different;
      EXPECT_EQ(plans[one] == plans[other], is_same) << one << " and " << other;
      EXPECT_EQ(plan_text(plans[one]) == plan_text(plans[other]), is_same)
          << one << " and " << other;
    }
  }
}

}  // namespace
}  // namespace lockstep
