// Tests the calls that a rank makes to its GPU, and passes whose GPU fails. The GPUs are simulated:
// they count calls, and fail as a test wants.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/engine/kernels/cuda/host_matrix_library.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

LoadedModelOptions on_simulated_gpu() {
  return {.kv_format = KvFormat::kF16, .gpus = &test_gpus()};
}

// Passes play the recordings that were made with the rank, each with its own batch.
void expect_recordings_play(const RandomModel& model) {
  LoadedModelOptions options = on_simulated_gpu();
  options.generated = true;
  LoadedModel loaded(model.path(), options);
  const GpuExecutor& rank = gpu_executor(loaded.ranks()[0]);
  EXPECT_GT(rank.recording_count(), 0U);
  const HostGpu::Counts before = host_gpu(0).counts();
  const auto tokens = some_tokens(6, 2);
  const LogitRows rows = loaded.compute_alone(tokens, 1);
  const HostGpu::Counts after = host_gpu(0).counts();
  EXPECT_EQ(after.graph_launches - before.graph_launches, tokens.size());
  EXPECT_EQ(after.allocations, before.allocations);
  // generation_launches() counts all launches of a recording, and two that only several ranks have:
  // after the embedding and for the logits. It sizes the space for recordings.
  const size_t launches = (after.launches - before.launches) / tokens.size();
  EXPECT_LE(launches, generation_launches(loaded.plan()));
  EXPECT_GE(launches + 2, generation_launches(loaded.plan()));
  EXPECT_EQ(rank.recording_count(), generation_shapes(loaded.plan()).size());
}

TEST(GpuRankFaults, generating_plays_recordings_and_allocates_nothing) {
  expect_recordings_play(RandomModel(Format::kQ8_0, Format::kQ8_0, /*seed=*/26));
  // Experts' gates in one format and in two.
  for (const Format others : {Format::kQ8_0, Format::kQ4_0}) {
    SCOPED_TRACE(traits(others).name);
    expect_recordings_play(
        RandomModel(Format::kQ8_0, others, /*seed=*/50, {.count = 3, .used = 2}));
  }
}

// A norm that a sum forms is none, which the space for recordings knows.
TEST(GpuRankFaults, recordings_of_several_ranks_have_as_many_launches_as_there_is_space_for) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/68);
  LoadedModelOptions options = on_simulated_gpu();
  options.generated = true;
  options.shares = {1, 1};
  options.strategy = Strategy::kReduce;
  LoadedModel loaded(model.path(), options);
  const size_t before = host_gpu(0).counts().launches;
  loaded.compute_alone(some_tokens(1, 2), 1);
  EXPECT_EQ(host_gpu(0).counts().launches - before, generation_launches(loaded.plan()));
}

// The launches of a pass with one generated token.
size_t launches_of(uint32_t layers) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/60 + layers, /*window=*/0, layers);
  LoadedModelOptions options = on_simulated_gpu();
  options.generated = true;
  LoadedModel loaded(model.path(), options);
  const size_t before = host_gpu(0).counts().launches;
  loaded.compute_alone(some_tokens(1, 2), 1);
  return host_gpu(0).counts().launches - before;
}

// Queries, keys and values; attention; its output; gate and up; down.
TEST(GpuRankFaults, a_layer_is_five_launches_where_all_generate) {
  EXPECT_EQ(launches_of(5) - launches_of(2), 3U * 5U);
}

TEST(GpuRankFaults, shapes_have_as_many_units_as_their_tokens_can_have) {
  EXPECT_EQ(generation_shapes(8, 600).back().units, 512U);
  EXPECT_EQ(generation_shapes(64, 5'000).back().units, 4'096U);
  EXPECT_EQ(generation_shapes(64, 100).back().units, 128U);
}

GpuPassShape shape_of(uint32_t tokens, uint32_t units) {
  return round_up_shape({.tokens = tokens,
                         .generated = tokens,
                         .split = tokens,
                         .logits = tokens,
                         .attention_units = units,
                         .prompt_tiles = 0,
                         .sequences = tokens,
                         .result_offset = 0});
}

TEST(GpuRankFaults, every_pass_that_generates_has_a_recording_and_no_recording_has_none) {
  for (const uint32_t sequences : {1U, 3U, 8U, 9U, 64U, 256U}) {
    for (const uint32_t units_max : {64U, 600U, 5'000U}) {
      std::set<GpuPassShape> wanted;
      for (uint32_t tokens = 1; tokens <= sequences; ++tokens) {
        const uint32_t most = std::min(units_max, tokens * kGpuTokenUnits);
        for (uint32_t units = tokens; units <= most; ++units) {
          wanted.insert(shape_of(tokens, units));
        }
      }
      const std::vector<GpuPassShape> shapes = generation_shapes(sequences, units_max);
      EXPECT_EQ(std::set<GpuPassShape>(shapes.begin(), shapes.end()), wanted)
          << sequences << " sequences, " << units_max << " units";
      EXPECT_EQ(shapes.size(), wanted.size());
    }
  }
  // Each takes the GPU's memory.
  EXPECT_EQ(generation_shapes(8, 512).size(), 18U);
  EXPECT_EQ(generation_shapes(64, 4'096).size(), 39U);
  EXPECT_EQ(generation_shapes(256, 16'384).size(), 53U);
}

TEST(GpuRankFaults, a_shape_has_less_than_twice_the_tokens_of_its_passes) {
  for (uint32_t tokens = 1; tokens <= 256; ++tokens) {
    const GpuPassShape shape = shape_of(tokens, tokens);
    EXPECT_GE(shape.tokens, tokens);
    EXPECT_LT(shape.tokens, 2 * tokens);
    EXPECT_EQ(shape.logits, shape.tokens);
  }
}

// A token whose keys another of the same pass sees has them prepared before attention begins.
TEST(GpuRankFaults, two_tokens_of_one_sequence_play_no_recording) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/66);
  LoadedModelOptions options = on_simulated_gpu();
  options.generated = true;
  LoadedModel loaded(model.path(), options);
  const auto tokens = some_tokens(4, 3);
  const auto launched = [] { return host_gpu(0).counts().graph_launches; };
  const size_t at_first = launched();
  const LogitRows together = loaded.compute_alone(tokens, 2);
  EXPECT_EQ(launched(), at_first);
  expect_same_bits(together, loaded.compute_alone(tokens, 1));
  EXPECT_EQ(launched(), at_first + tokens.size());
  // As many tokens and units, but of two sequences.
  LoadedModel::Sequence first = loaded.new_sequence(1);
  LoadedModel::Sequence second = loaded.new_sequence(1);
  const std::vector<LoadedModel::Piece> pieces = {{first, std::span(tokens).first(1)},
                                                  {second, std::span(tokens).first(1)}};
  const LogitRows apart = loaded.compute(pieces);
  EXPECT_EQ(launched(), at_first + tokens.size() + 1);
  expect_same_bits({together.front(), together.front()}, apart);
}

template <typename T>
ArenaOffset<const std::byte> bytes_at(const ArenaOffset<T>& offset) {
  return {offset.arena, offset.bytes};
}

struct Area {
  const char* name;
  ArenaOffset<const std::byte> begin;
  size_t bytes;
};

void expect_apart(const std::vector<Area>& areas) {
  std::vector<std::tuple<Arena, size_t, size_t>> taken;
  for (const Area& area : areas) {
    const auto [arena, begin] = std::pair(area.begin.arena, area.begin.bytes);
    EXPECT_TRUE(area.begin) << area.name;
    for (size_t other = 0; other < taken.size(); ++other) {
      const auto& [other_arena, other_begin, other_end] = taken[other];
      EXPECT_TRUE(arena != other_arena || begin + area.bytes <= other_begin || other_end <= begin)
          << area.name << " and " << areas[other].name;
    }
    taken.emplace_back(arena, begin, begin + area.bytes);
  }
}

TEST(GpuRankFaults, attention_has_places_for_every_page_and_no_more_than_tokens_can_use) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/67);
  for (const size_t pages : {size_t{3}, size_t{200}}) {
    LoadedModelOptions options = on_simulated_gpu();
    options.batch_tokens = 2;
    options.kv_pages = pages;
    LoadedModel loaded(model.path(), options);
    const Plan& plan = loaded.plan();
    const size_t units = std::min(2 + pages, 2 * size_t{kGpuTokenUnits});
    const auto& gpu = std::get<GpuAreas>(plan.areas);
    EXPECT_EQ(gpu.limits.attention_units, units);
    for (const Step& step : plan.steps) {
      const auto* attend = std::get_if<AttendStep>(&step.work);
      if (attend == nullptr) continue;
      const GpuPartials& partials = gpu.partials;
      const size_t heads = units * attend->head_count;
      expect_apart(
          {{"outputs", bytes_at(partials.rows), heads * plan.kv.widest_value() * sizeof(float)},
           {"sums", bytes_at(partials.sums), 2 * heads * sizeof(float)},
           {"arrived", bytes_at(partials.arrived), heads * sizeof(uint32_t)},
           {"queries", bytes_at(attend->queries), 1},
           {"the batch", bytes_at(gpu.batch), gpu_batch_bytes(gpu.limits)}});
    }
  }
}

// However the tokens of the largest pass choose.
TEST(GpuRankFaults, every_row_of_experts_has_a_place_and_nothing_else_is_taken) {
  for (const Format others : {Format::kQ8_0, Format::kQ4_0}) {
    const bool fused = others == Format::kQ8_0;
    const RandomModel model(Format::kQ8_0, others, /*seed=*/51, {.count = 9, .used = 8});
    LoadedModel loaded(model.path(), on_simulated_gpu());
    const Plan& plan = loaded.plan();
    const auto& gpu = std::get<GpuAreas>(plan.areas);
    const size_t rows = plan.batch_tokens * 8;
    size_t steps = 0;
    const auto areas_of = [&](const Routing& routing) {
      return std::vector<Area>{
          {"what lies behind activations", bytes_at(gpu.panel), 1},
          {"chosen", bytes_at(routing.chosen), rows * sizeof(uint32_t)},
          {"weights", bytes_at(routing.weights), rows * sizeof(float)},
          {"choice_rows", bytes_at(gpu.choice_rows), rows * sizeof(uint32_t)},
          {"row_tokens", bytes_at(routing.row_tokens), rows * sizeof(uint32_t)},
          {"row_begin", bytes_at(routing.row_begin), 10 * sizeof(uint32_t)}};
    };
    for (const Step& step : plan.steps) {
      if (const auto* gate = std::get_if<ExpertGateStep>(&step.work)) {
        ++steps;
        std::vector<Area> areas = areas_of(gate->routing);
        const FormBuffer& gated = gate->output.forms[ActivationForm::kBf16];
        areas.push_back({"gated", bytes_at(gated.rows), rows * gated.stride_bytes});
        for (const ExpertPart* part : {&gate->gate, &gate->up}) {
          EXPECT_EQ(part->output_stride < part->matrices.front().rows, fused);
          areas.push_back(
              {"a gate's", bytes_at(part->output), rows * part->output_stride * sizeof(float)});
        }
        EXPECT_FALSE(gate->gathered.has_value());
        expect_apart(areas);
      } else if (const auto* sum = std::get_if<ExpertSumStep>(&step.work)) {
        ++steps;
        std::vector<Area> areas = areas_of(sum->routing);
        const FormBuffer& gated = sum->input[ActivationForm::kBf16];
        areas.push_back({"gated", bytes_at(gated.rows), rows * gated.stride_bytes});
        const auto& products = std::get<RowProducts>(sum->products);
        areas.push_back(
            {"products", bytes_at(products.rows), rows * products.stride * sizeof(float)});
        areas.push_back({"residual", bytes_at(sum->down.output),
                         plan.batch_tokens * sum->down.output_stride * sizeof(float)});
        expect_apart(areas);
      }
    }
    EXPECT_EQ(steps, 4U);
  }
}

// Whether it is the only rank or one of several: the pass ends, and says so.
TEST(GpuRankFaults, a_lost_gpu_fails_the_pass) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/32);
  const auto tokens = some_tokens(4, 1);
  LoadedModelOptions options = on_simulated_gpu();
  options.gpu_count = 1;
  for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}}) {
    SCOPED_TRACE(shares.size());
    options.shares = shares;
    options.strategy = shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
    {
      LoadedModel loaded(model.path(), options);
      loaded.compute_alone(tokens, 4);
      host_gpu(0).lose(2);  // in the midst of the next pass
      for (int pass = 0; pass < 2; ++pass) {
        try {
          loaded.compute_alone(tokens, 4);
          FAIL() << "pass " << pass << " was computed";
        } catch (const std::runtime_error& error) {
          EXPECT_NE(std::string(error.what()).find("the GPU is lost"), std::string::npos);
        }
      }
    }
    host_gpu(0).reset();
  }
}

// Closing it would wait for the GPU. Whichever call of a pass it is that says so first.
TEST(GpuRankFaults, a_library_is_not_closed_whose_gpu_is_lost) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/45);
  for (const std::optional<size_t> calls_left :
       {std::optional<size_t>(), std::optional<size_t>(0), std::optional<size_t>(1),
        std::optional<size_t>(2)}) {
    SCOPED_TRACE(calls_left.value_or(99));
    const size_t before = closed_libraries();
    {
      LoadedModel loaded(model.path(), on_simulated_gpu());
      if (calls_left) {
        host_gpu(0).lose(*calls_left);
        EXPECT_THROW(loaded.compute_alone(some_tokens(2, 1), 2), std::runtime_error);
      }
    }
    EXPECT_EQ(closed_libraries() - before, calls_left ? 0U : 1U);
    host_gpu(0).reset();
  }
}

TEST(GpuRankFaults, a_row_of_logits_that_cannot_be_fetched_is_a_failure) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/34);
  {
    LoadedModel loaded(model.path(), on_simulated_gpu());
    loaded.compute_alone(some_tokens(2, 1), 2);
    LogitRow row = loaded.logit_row(1);
    host_gpu(0).lose();
    EXPECT_NE(row.candidates(), nullptr);
    const auto fetched = row.all();
    ASSERT_FALSE(fetched.has_value());
    EXPECT_EQ(fetched.error().kind, ErrorKind::kMachineRefused);
  }
  host_gpu(0).reset();
}

TEST(GpuRankFaults, too_little_memory_is_refused_by_name) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/33);
  host_gpu(0).set_memory(1 << 20);
  try {
    const LoadedModel loaded(model.path(), on_simulated_gpu());
    ADD_FAILURE() << "it was loaded";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("memory for weights"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(host_gpu(0).counts().allocated_bytes, 0U);
  EXPECT_EQ(host_gpu(0).counts().pinned_bytes, 0U);
  host_gpu(0).reset();
}

}  // namespace
}  // namespace lockstep
