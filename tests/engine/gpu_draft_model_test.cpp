// Drafts by another model where GPUs compute: an answer has the text and the log-probabilities of
// one without drafts. On simulated GPUs, which run what they are given as early as a real one may.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/measure/machine_planning.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/draft_file.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/model_layout.h"
#include "tests/engine/gpu_engine_fixture.h"
#include "tests/engine/placement/place_model.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/predicting_model.h"
#include "tests/engine/serving/speculation_fixture.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Greedy and sampled, with log-probabilities, stop strings and a grammar (SpeculationTest::nth()).
constexpr size_t kAsked[] = {0, 1, 4, 7};

class GpuDraftModel : public OnGpus<SpeculationTest> {
 protected:
  GpuDraftModel() { options_.draft_tokens = 4; }
  ~GpuDraftModel() override {
    engine_.reset();
    for (const int gpu : {0, 1}) host_gpu(gpu).reset();
  }

  static std::string fixture(const std::string& name) {
    return source_dir() + "/tests/fixtures/" + name + ".gguf";
  }
  void draft_by(const std::string& file) {
    options_.speculate = file.empty() ? "none" : "draft";
    options_.draft_model = file;
    engine_.reset();
  }

  Request asked(size_t number) {
    Request next = nth(number);
    next.max_tokens = 14 + static_cast<uint32_t>(number);
    return next;
  }
  // Each by itself, and then all of them side by side.
  std::vector<Heard> all_answers() {
    std::vector<Heard> told;
    for (const size_t number : kAsked) told.push_back(answer_of(asked(number)));
    std::vector<std::unique_ptr<Answer>> answers;
    NewsGate gate;
    Answer held;
    hold(gate, held);
    for (const size_t number : kAsked) {
      answers.push_back(std::make_unique<Answer>());
      submit(asked(number), *answers.back());
    }
    gate.open();
    for (const auto& answer : answers) told.push_back(heard(*answer));
    held.wait();
    return told;
  }

  void expect_same_answers_with_drafts(const std::vector<std::string>& files) {
    draft_by("");
    const std::vector<Heard> plain = all_answers();
    EXPECT_EQ(drafts(), 0U);
    for (const std::string& file : files) {
      SCOPED_TRACE(file);
      draft_by(file);
      const std::vector<Heard> found = all_answers();
      for (size_t index = 0; index < plain.size(); ++index) {
        EXPECT_EQ(found[index], plain[index]) << index;
      }
      EXPECT_EQ(of_model().drafter, "draft");
      EXPECT_GT(drafted(), 80U);
      EXPECT_EQ(accepted() > drafted() / 8, file == same_) << accepted() << " of " << drafted();
      EXPECT_GT(engine().statistics().draft_stage_seconds, 0);
    }
  }

  const std::string same_ = fixture("logits/llama-gqa-f16");
  const std::string other_ = fixture("logits/qwen3-gqa-f32");
};

TEST_F(GpuDraftModel, changes_no_answer_on_one_gpu) {
  expect_same_answers_with_drafts({same_, other_});
}

TEST_F(GpuDraftModel, changes_no_answer_on_two_gpus) {
  use_two(GpuLink::kNvlink);
  expect_same_answers_with_drafts({same_});
}

TEST_F(GpuDraftModel, changes_no_answer_on_two_gpus_joined_by_nccl) {
  use_two(GpuLink::kHost);
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  machine_->gpu_platform = &by_nccl;
  expect_same_answers_with_drafts({same_});
  engine_.reset();
}

TEST_F(GpuDraftModel, changes_no_answer_where_gpus_have_whole_layers) {
  options_.strategy = "layers";
  for (const GpuLink link : {GpuLink::kNvlink, GpuLink::kHost}) {
    use_two(link);
    expect_same_answers_with_drafts({same_});
  }
}

TEST_F(GpuDraftModel, changes_no_answer_on_a_gpu_beside_a_node) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "each rank needs a processor";
  options_.devices = "all";
  options_.shares = {1, 1};
  options_.rank_count = 2;
  expect_same_answers_with_drafts({same_});
}

// Texts over several pages that are read in pieces: the draft's cache has what it should have, or
// the model itself would err. Where a text is read its last bits are a prompt's.
TEST_F(GpuDraftModel, the_model_itself_is_right_at_nearly_each_greedy_token) {
  options_.context_tokens = 320;
  draft_by(same_);
  for (const size_t words : {3U, 40U, 150U}) {
    Request next = request(std::string(words, 'w'), 40);
    next.sampling.temperature = 0;
    const uint64_t steps = engine().statistics().steps;
    EXPECT_EQ(answer_of(std::move(next)).tokens.size(), 40U);
    EXPECT_LT(engine().statistics().steps - steps, 25U);
  }
  EXPECT_GT(drafted(), 80U);
  EXPECT_GE(accepted(), drafted() - drafted() / 10);
}

// No pass begins ahead of drafts; streams without them have such passes all the same.
TEST_F(GpuDraftModel, passes_begin_ahead_where_nothing_is_drafted) {
  draft_by(same_);
  Request without = request("Once upon a time", 30);
  without.sampling.temperature = 0;
  without.speculation = false;
  const Heard plain = answer_of(without);
  const uint64_t ahead = engine().statistics().steps_ahead;
  EXPECT_GT(ahead, 15U);
  Request with = without;
  with.speculation = true;
  EXPECT_EQ(answer_of(std::move(with)), plain);
  EXPECT_LT(engine().statistics().steps_ahead - ahead, 5U);
}

// As many tokens as pay: streams draft now and then, between passes that begin ahead.
TEST_F(GpuDraftModel, changes_no_answer_with_as_many_tokens_as_pay) {
  draft_by("");
  const std::vector<Heard> plain = all_answers();
  options_.draft_tokens.reset();
  for (const std::string& file : {same_, other_}) {
    draft_by(file);
    EXPECT_EQ(all_answers(), plain) << file;
  }
}

TEST_F(GpuDraftModel, is_planned_and_counted_among_the_gpus_memory) {
  use_two(GpuLink::kNvlink);
  draft_by(other_);
  const auto plan = plan_machine(options_, *machine_, /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_TRUE(plan->draft.has_value());
  ASSERT_EQ(plan->draft->ranks.size(), 2U);
  const auto ranks = engine().statistics().ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    const MachinePlan::Draft::Rank& draft = plan->draft->ranks[rank];
    const MachinePlan::Rank& own = plan->ranks[rank];
    EXPECT_GT(draft.weight_bytes, 0U);
    EXPECT_GT(draft.kv_bytes, 0U);
    EXPECT_EQ(ranks[rank].weight_bytes, own.weight_bytes + draft.weight_bytes);
    EXPECT_EQ(ranks[rank].kv_bytes, own.kv_bytes + draft.kv_bytes);
    EXPECT_EQ(ranks[rank].scratch_bytes, own.scratch_bytes + draft.scratch_bytes);
    EXPECT_THAT(own.other_needs,
                ::testing::Contains(::testing::Field(
                    &MachinePlan::Need::what, "the draft model's load, recordings and sums")));
  }
}

// The GPUs have what was computed to be enough for both and not a byte more.
TEST_F(GpuDraftModel, a_context_that_was_sought_leaves_space_for_both) {
  use_two(GpuLink::kNvlink);
  draft_by(other_);
  options_.context_tokens = 0;
  options_.sequence_count = 64;
  options_.batch_tokens = 64;
  const auto file = GgufFile::open(options_.model);
  ASSERT_TRUE(file.has_value());
  auto model = build_model({.file = *file});
  ASSERT_TRUE(model.has_value());
  auto settings = parse(options_, *machine_);
  ASSERT_TRUE(settings.has_value());
  const auto draft = open_draft_file(options_, *file, *settings, *model);
  ASSERT_TRUE(draft.has_value()) << draft.error().message;
  const auto layout_of = [&] {
    auto layout = Placer(*model, *settings, *machine_).place();
    EXPECT_TRUE(layout.has_value() && size_context(*model, *settings, *machine_, *layout));
    return *layout;
  };
  const auto taken = [](const ModelLayout& layout) {
    return layout.sizes[0].gpu_bytes() + layout.draft->sizes[0].gpu_bytes();
  };
  const ModelLayout roomy = layout_of();
  for (Gpu& gpu : gpus_) {
    gpu.free_bytes -= usable_bytes(gpu) - (taken(roomy) - roomy.sizes[0].kv_bytes / 2);
  }
  const ModelLayout tight = layout_of();
  EXPECT_LT(tight.sizes[0].kv_bytes, roomy.sizes[0].kv_bytes);
  EXPECT_LT(tight.draft->sizes[0].kv_bytes, roomy.draft->sizes[0].kv_bytes);
  const uint64_t recordings =
      tight.sizes[0].recording_bytes + tight.draft->sizes[0].recording_bytes;
  for (int rank = 0; rank < 2; ++rank) host_gpu(rank).reset(usable_bytes(gpus_[0]) - recordings);
  EXPECT_EQ(engine().model().context_tokens, tight.context_tokens);
}

TEST_F(GpuDraftModel, a_gpu_that_is_lost_while_a_stage_drafts_ends_the_engine) {
  draft_by(same_);
  for (size_t calls = 0; calls < 40; calls += 3) {
    SCOPED_TRACE(calls);
    Answer answer;
    engine();
    NewsGate gate;
    Answer holding;
    hold(gate, holding, 100);
    submit(request("Once", 100), answer);
    host_gpu(0).lose(calls);
    gate.open();
    for (Answer* each : {&holding, &answer}) {
      EXPECT_EQ(each->wait(), FinishReason::kError);
      EXPECT_THAT(each->error(), HasSubstr("gpu0"));
    }
    engine_.reset();
    EXPECT_EQ(host_gpu(0).counts().allocated_bytes, 0U);
    host_gpu(0).reset();
  }
}

// It reads the model's hidden rows, which are given to it with tokens.
TEST_F(GpuDraftModel, a_block_of_the_models_own_changes_no_answer) {
  for (const char* const name : {"glm4moe-norms", "mimo2"}) {
    SCOPED_TRACE(name);
    options_.model = fixture(std::string("predicting/") + name);
    draft_by("");
    const std::vector<Heard> plain = all_answers();
    options_.speculate = "mtp";
    engine_.reset();
    EXPECT_EQ(all_answers(), plain);
    EXPECT_EQ(of_model().drafter, "mtp");
    EXPECT_GT(of_model().drafts, 30U);
  }
}

// No pass of the model begins ahead while rows of the one before are to be read, even where drafts
// do not pay, so that passes have one token.
TEST_F(GpuDraftModel, no_pass_begins_ahead_of_a_block_that_reads_rows) {
  options_.model = fixture("predicting/glm4moe-norms");
  options_.speculate = "mtp";
  options_.draft_tokens.reset();
  Request asked = request("Once", 100);
  asked.sampling.temperature = 0;
  const Heard with = answer_of(asked);
  EXPECT_EQ(engine().statistics().steps_ahead, 0U);
  asked.speculation = false;
  EXPECT_EQ(answer_of(asked), with);
  EXPECT_GT(engine().statistics().steps_ahead, 10U);
}

TEST_F(GpuDraftModel, a_block_is_right_at_each_greedy_token_where_it_foresees_the_model) {
  const test::Folder folder;
  options_.model = folder / "copy.gguf";
  write_foreseeing_copy(fixture("predicting/mimo2"), options_.model);
  options_.context_tokens = 400;
  options_.speculate = "mtp";
  Request asked = request("Once", 100);
  asked.sampling.temperature = 0;
  answer_of(asked);
  EXPECT_GT(drafted(), 50U);
  EXPECT_EQ(accepted(), drafted());
}

TEST_F(GpuDraftModel, given_rows_are_read_as_processors_read_them) {
  const std::string path = fixture("predicting/glm4moe-norms");
  const BlockFile block = open_block(path, path);
  LoadedModel on_gpu(block.file, block.model, {.kv_format = KvFormat::kF16, .gpus = &test_gpus()});
  LoadedModel on_node(block.file, block.model, {.kv_format = KvFormat::kF16});
  const auto tokens = some_tokens(40, 3);
  const size_t columns = on_gpu.plan().given_columns;
  ASSERT_GT(columns, 0U);
  const auto rows_of = [&](float factor) {
    std::vector<float> rows(tokens.size() * columns);
    for (size_t index = 0; index < rows.size(); ++index) {
      rows[index] = std::sin(factor * static_cast<float>(index));
    }
    return rows;
  };
  // The largest difference between two models' logits, of what these have.
  const auto difference = [&](const LogitRows& one, const LogitRows& other) {
    float most = 0;
    float all = 0;
    for (size_t row = 0; row < one.size(); ++row) {
      for (size_t column = 0; column < one[row].size(); ++column) {
        most = std::max(most, std::abs(one[row][column] - other[row][column]));
        all = std::max(all, std::abs(one[row][column]));
      }
    }
    return most / all;
  };
  const LogitRows expected = on_node.compute_alone(tokens, 16, rows_of(0.7F));
  EXPECT_LT(difference(on_gpu.compute_alone(tokens, 16, rows_of(0.7F)), expected), 0.05F);
  EXPECT_GT(difference(on_gpu.compute_alone(tokens, 16, rows_of(0.3F)), expected), 0.3F);
}

TEST_F(GpuDraftModel, what_reads_rows_that_layers_keep_is_refused_with_the_remedy) {
  options_.model = fixture("eagle/llama");
  options_.draft_model = fixture("eagle/llama-words-eagle");
  options_.speculate = "eagle3";
  for (const char* const devices : {"gpu0", "auto"}) {
    options_.devices = devices;
    EXPECT_THAT(refusal(),
                HasSubstr("the draft model (eagle3) reads what layers of the model keep, which "
                          "GPUs do not hand out: use --devices cpu, or another drafter, as "
                          "--speculate ngram"));
  }
  options_.draft_model.clear();
  options_.speculate = "auto";
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace lockstep
