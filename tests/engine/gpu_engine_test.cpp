// An engine that computes on a simulated GPU, whose memory is the host's and whose kernels run on
// the host. Everything but the device itself is what runs on a real one.
#include <gmock/gmock.h>

#include <thread>

#include "engine/kernels/kernel_table.h"
#include "engine/machine/device_choice.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/model_layout.h"
#include "engine/text/grammar/grammar_matcher.h"
#include "tests/engine/gpu_engine_fixture.h"
#include "tests/engine/placement/place_model.h"
#include "tests/engine/runtime/logits_rows.h"

namespace lockstep {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class GpuEngineTest : public OnGpuEngine {
 protected:
  LogitRows logits_of(std::span<const TokenId> tokens) {
    LogitRows rows;
    LogitsCase wanted;
    wanted.sequences = {tokens};
    const auto computed =
        engine().compute_logits(wanted, [&](size_t, size_t, std::span<const float> logits) {
          rows.emplace_back(logits.begin(), logits.end());
        });
    EXPECT_TRUE(computed.has_value()) << computed.error().message;
    return rows;
  }

  // Bytes of the GPU's memory in a rank's statistics.
  static uint64_t told_of_gpu(const RankStatistics& rank) {
    return rank.weight_bytes + rank.kv_bytes + rank.scratch_bytes - rank.host_scratch_bytes;
  }
};

TEST_F(GpuEngineTest, logits_are_those_of_ranks_without_an_engine) {
  const auto tokens = some_tokens(20, 3);
  LoadedModel loaded(options_.model, {.kv_format = KvFormat::kF16, .gpus = &test_gpus()});
  expect_same_bits(logits_of(tokens), loaded.compute_alone(tokens, tokens.size()));
}

TEST_F(GpuEngineTest, an_answer_is_the_same_alone_and_among_others) {
  const std::string alone = answer_to(request("Once upon a time", 6));
  EXPECT_FALSE(alone.empty());
  Answer answers[3];
  for (size_t index = 0; index < 3; ++index) {
    submit(request(index == 1 ? "Once upon a time" : "There was another", 6, index == 1 ? 7 : 1),
           answers[index]);
  }
  for (Answer& answer : answers) EXPECT_EQ(answer.wait(), FinishReason::kLength);
  EXPECT_EQ(answers[1].text(), alone);
}

// The engine samples from the few logits of a row that the GPU sends, and fetches the row where
// they do not do. Its answers are those of a sampler that sees whole rows.
TEST_F(GpuEngineTest, answers_are_those_of_whole_rows_of_logits) {
  struct Case {
    SamplingParameters sampling;
    bool logprobs = false;
    bool fetches = false;
    bool grammar = false;
  };
  const std::vector<Case> cases = {
      {{.temperature = 0}},
      {{.temperature = 0, .presence_penalty = 2, .repetition_penalty = 1.5F}},
      {{.temperature = 2, .top_k = 20, .seed = 5}},
      {{.temperature = 1, .seed = 6}},
      {{.temperature = 1, .top_p = 0.9F, .seed = 7}},
      {{.temperature = 1, .logit_bias = {{5, 1.0F}}, .seed = 8}, false, /*fetches=*/true},
      {{.temperature = 0}, /*logprobs=*/true, /*fetches=*/true},
      {{.temperature = 1, .top_k = 9, .seed = 9}, false, false, /*grammar=*/true},
      {{.temperature = 1, .seed = 10}, false, /*fetches=*/true, /*grammar=*/true},
  };
  const auto grammar = engine().compile_grammar({GrammarSource::Kind::kRegex, "[a-z ]{60}"});
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  constexpr size_t kTokens = 3;
  LoadedModel loaded(options_.model, {.kv_format = KvFormat::kF16, .gpus = &test_gpus()});
  ASSERT_GT(loaded.plan().vocabulary_size, kGpuCandidates);
  for (const Case& wanted : cases) {
    SCOPED_TRACE(&wanted - cases.data());
    Request asked = request("Once upon a time", kTokens);
    asked.sampling = wanted.sampling;
    if (wanted.logprobs) asked.logprobs = 2;
    if (wanted.grammar) asked.grammar = *grammar;
    GrammarMatcher matcher(*grammar);
    std::vector<TokenId> next = asked.prompt;
    Sampler sampler(asked.sampling, next, loaded.plan().vocabulary_size);
    LoadedModel::Sequence sequence = loaded.new_sequence(next.size() + kTokens);
    std::vector<TokenId> expected;
    for (size_t step = 0; step < kTokens; ++step) {
      const std::vector<LoadedModel::Piece> pieces = {{sequence, next}};
      // The prompt is a short one, which is computed as generated tokens are.
      std::vector<float> row = loaded.compute(pieces, next.size()).back();
      if (wanted.grammar) matcher.allowed().value()->apply(row);
      next = {sampler.sample(row, {})};
      if (wanted.grammar) {
        ASSERT_TRUE(matcher.accept(next[0]).has_value());
      }
      expected.push_back(next[0]);
    }
    loaded.give_back(sequence);
    const HostGpu::Counts before = host_gpu(0).counts();
    const uint64_t steps = engine().statistics().steps;
    Answer answer;
    submit(std::move(asked), answer);
    EXPECT_EQ(answer.wait(), FinishReason::kLength);
    std::vector<TokenId> tokens;
    for (const OutputToken& token : answer.tokens()) tokens.push_back(token.token);
    EXPECT_EQ(tokens, expected);
    // A copy for each pass, and one for each row that is fetched.
    const size_t copies = host_gpu(0).counts().copies - before.copies;
    EXPECT_EQ(copies, engine().statistics().steps - steps + (wanted.fetches ? kTokens : 0));
  }
}

// A short text, which is computed as generated tokens are, and a long one, which is prompted.
TEST_F(GpuEngineTest, embeddings_of_encoders_are_near_those_of_nodes) {
  for (const std::string name : {"bert.gguf", "gemma-embedding.gguf", "nomic-bert.gguf"}) {
    SCOPED_TRACE(name);
    options_.model = source_dir() + "/tests/fixtures/encoders/" + name;
    options_.context_tokens = 128;
    options_.batch_tokens = 128;
    const auto embed = [&](const std::string& devices, size_t tokens) {
      options_.devices = devices;
      engine_.reset();
      Request asked;
      asked.prompt = some_tokens(tokens, 3);
      asked.embedding = true;
      Answer answer;
      submit(std::move(asked), answer);
      EXPECT_EQ(answer.wait(), FinishReason::kStop) << answer.error();
      return answer.embedding();
    };
    for (const size_t tokens : {5U, 60U}) {
      const std::vector<float> expected = embed("cpu", tokens);
      const std::vector<float> found = embed("gpu0", tokens);
      EXPECT_EQ(engine().model().devices, "gpu0 Simulated GPU");
      ASSERT_EQ(found.size(), expected.size());
      double cosine = 0;  // both have length 1
      for (size_t i = 0; i < found.size(); ++i) cosine += double{found[i]} * double{expected[i]};
      EXPECT_GT(cosine, 0.9999) << tokens;
    }
  }
}

TEST_F(GpuEngineTest, two_gpus_answer_together) {
  gpus_.push_back(simulated_gpu(1, -1));
  for (Gpu& gpu : gpus_) gpu.links.assign(2, GpuLink::kNvlink);
  options_.devices = "gpu0,gpu1";
  const auto tokens = some_tokens(12, 3);
  LoadedModel loaded(options_.model, {.shares = {1, 1},
                                      .strategy = Strategy::kReduce,
                                      .kv_format = KvFormat::kF16,
                                      .gpus = &test_gpus()});
  expect_same_bits(logits_of(tokens), loaded.compute_alone(tokens, tokens.size()));
  EXPECT_FALSE(answer_to(request("Once upon a time", 4)).empty());
  EXPECT_EQ(engine().model().devices, "gpu0 Simulated GPU, gpu1 Simulated GPU");
  EXPECT_EQ(engine().model().strategy, "reduce");
  const auto ranks = engine().statistics().ranks;
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[1].gpu, 1);
  for (const RankStatistics& rank : ranks) EXPECT_GT(rank.gpu_seconds, 0.0);
}

TEST_F(GpuEngineTest, two_gpus_that_do_not_reach_one_another_answer_together) {
  gpus_.push_back(simulated_gpu(1, -1));
  for (Gpu& gpu : gpus_) gpu.links.assign(2, GpuLink::kHost);
  options_.devices = "gpu0,gpu1";
  const auto refused = open();
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("in a build without NCCL"));
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  machine_->gpu_platform = &by_nccl;
  const std::string text = answer_to(request("Once upon a time", 4));
  EXPECT_FALSE(text.empty());
  const auto ranks = engine().statistics().ranks;
  ASSERT_EQ(ranks.size(), 2U);
  for (const RankStatistics& rank : ranks) EXPECT_GT(rank.exchange_bytes, 0U);
  // The other one's sums wait for it no longer than it takes to say so.
  host_gpu(1).lose(40);
  Answer answer;
  submit(request("Once", 100), answer);
  EXPECT_EQ(answer.wait(), FinishReason::kError);
  EXPECT_THAT(answer.error(), HasSubstr("gpu1"));
  ASSERT_TRUE(engine().failure().has_value());
  EXPECT_EQ(engine().failure()->kind, ErrorKind::kMachineRefused);
  engine_.reset();
  host_gpu(1).reset();
}

TEST_F(GpuEngineTest, a_gpu_and_a_node_answer_together) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "each rank needs a processor";
  options_.devices = "all";
  options_.shares = {1, 1};
  options_.rank_count = 2;
  const auto tokens = some_tokens(12, 3);
  LoadedModel loaded(options_.model, {.shares = {1, 1},
                                      .strategy = Strategy::kReduce,
                                      .kv_format = KvFormat::kF16,
                                      .gpus = &test_gpus(),
                                      .gpu_count = 1});
  const size_t others = host_gpu(0).counts().allocated_bytes;
  expect_same_bits(logits_of(tokens), loaded.compute_alone(tokens, tokens.size()));
  EXPECT_FALSE(answer_to(request("Once upon a time", 4)).empty());
  const auto ranks = engine().statistics().ranks;
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[0].gpu, 0);
  EXPECT_EQ(ranks[1].gpu, std::nullopt);
  EXPECT_GT(ranks[0].gpu_seconds, 0.0);
  EXPECT_EQ(ranks[1].gpu_seconds, 0.0);
  EXPECT_GT(ranks[1].weight_bytes, 0U);
  EXPECT_GT(ranks[0].exchange_bytes, 0U);
  // The ranks exchange through the host's memory, which counts as none of the GPU's.
  EXPECT_EQ(host_gpu(0).counts().allocated_bytes - others, told_of_gpu(ranks[0]));
  EXPECT_EQ(ranks[1].host_scratch_bytes, ranks[1].scratch_bytes);
}

std::optional<bool> told_to_overlap;

TEST_F(GpuEngineTest, launches_overlap_as_the_options_say) {
  static GpuPlatform platform = test_gpus();
  platform.let_launches_overlap = [](bool wanted) { told_to_overlap = wanted; };
  machine_->gpu_platform = &platform;
  for (const bool wanted : {false, true}) {
    options_.gpu_launch_overlap = wanted;
    engine();
    EXPECT_EQ(told_to_overlap, wanted);
    engine_.reset();
  }
}

// More than the seven seconds' nine digits of nanoseconds are gone once it waits.
TEST_F(GpuEngineTest, a_pass_has_as_long_as_the_options_say) {
  options_.gpu_deadline_seconds = 7;
  engine();
  host_gpu(0).hang(std::chrono::milliseconds(1));
  Answer answer;
  submit(request("Once upon a time", 4), answer);
  EXPECT_EQ(answer.wait(), FinishReason::kError);
  EXPECT_THAT(answer.error(), ContainsRegex("not done within 6[0-9]{9} ns"));
}

TEST_F(GpuEngineTest, what_is_told_of_the_rank_is_the_gpus) {
  const ModelInfo& info = engine().model();
  EXPECT_EQ(info.devices, "gpu0 Simulated GPU");
  EXPECT_EQ(info.instruction_set, "sm_90");
  EXPECT_EQ(info.arithmetic, "gpu");
  EXPECT_THAT(info.fingerprint, HasSubstr("-gpu-"));
  EXPECT_EQ(info.worker_count, 1U);
  const auto ranks = engine().statistics().ranks;
  ASSERT_EQ(ranks.size(), 1U);
  EXPECT_EQ(ranks[0].gpu, 0);
  EXPECT_EQ(ranks[0].gpu_title, "gpu0 Simulated GPU");
  EXPECT_EQ(ranks[0].wrong_node_bytes, 0U);
  EXPECT_GT(ranks[0].weight_bytes, 0U);
  EXPECT_GT(ranks[0].kv_bytes, 0U);
  EXPECT_EQ(host_gpu(0).counts().allocated_bytes, told_of_gpu(ranks[0]));
  EXPECT_GT(host_gpu(0).counts().launches + host_gpu(0).counts().graph_launches, 0U);
}

TEST_F(GpuEngineTest, a_gpu_without_space_is_refused_when_the_memory_is_taken) {
  host_gpu(0).set_memory(1U << 16U);
  auto opened = open();
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const auto loaded = (*opened)->load();
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(loaded.error().message, HasSubstr("gpu0"));
}

// The GPUs have what was computed to be enough and not a byte more: of the context whatever fits
// beside mailboxes and what the load takes.
TEST_F(GpuEngineTest, a_context_that_was_sought_leaves_space_for_all_that_is_taken) {
  gpus_.push_back(simulated_gpu(1, -1));
  for (Gpu& gpu : gpus_) gpu.links.assign(2, GpuLink::kNvlink);
  options_.devices = "gpu0,gpu1";
  options_.context_tokens = 0;
  options_.sequence_count = 64;
  options_.batch_tokens = 64;
  const auto file = GgufFile::open(options_.model);
  ASSERT_TRUE(file.has_value());
  const auto model = build_model({.file = *file});
  ASSERT_TRUE(model.has_value());
  const auto layout_of = [&] {
    const auto settings = parse(options_, *machine_);
    auto layout = place_model(*model, options_, *machine_);
    EXPECT_TRUE(layout.has_value() && size_context(*model, *settings, *machine_, *layout));
    return *layout;
  };
  const std::vector<RankSizes> roomy = layout_of().sizes;
  EXPECT_GT(roomy[0].mailbox_bytes, 0U);
  EXPECT_GT(roomy[0].staging_bytes, 0U);
  EXPECT_GT(roomy[0].recording_bytes, 0U);
  for (Gpu& gpu : gpus_) {
    gpu.free_bytes -= usable_bytes(gpu) - (roomy[0].gpu_bytes() - roomy[0].kv_bytes / 2);
  }
  const ModelLayout tight = layout_of();
  EXPECT_LT(tight.sizes[0].kv_bytes, roomy[0].kv_bytes);
  for (int rank = 0; rank < 2; ++rank) {
    host_gpu(rank).reset(usable_bytes(gpus_[0]) - tight.sizes[0].recording_bytes);
  }
  EXPECT_EQ(engine().model().context_tokens, tight.context_tokens);
  engine_.reset();
  for (int rank = 0; rank < 2; ++rank) host_gpu(rank).reset();
}

TEST_F(GpuEngineTest, nothing_is_left_to_the_next_process) {
  options_.keep_memory = MemoryKeeping::kAlways;
  EXPECT_TRUE(engine().memory_to_keep().entries.empty());
}

TEST_F(GpuEngineTest, a_lost_gpu_ends_every_request_and_the_engine) {
  engine();
  Answer answers[3];
  NewsGate gate;
  Answer holding;
  hold(gate, holding, 100);
  for (Answer& answer : answers) submit(request("Once", 100), answer);
  host_gpu(0).lose(40);
  gate.open();
  EXPECT_EQ(holding.wait(), FinishReason::kError);
  for (Answer& answer : answers) {
    EXPECT_EQ(answer.wait(), FinishReason::kError);
    EXPECT_THAT(answer.error(), HasSubstr("gpu0"));
  }
  Request late = request("late", 1);
  EXPECT_FALSE(engine().submit(std::move(late)).has_value());
  ASSERT_TRUE(engine().failure().has_value());
  EXPECT_EQ(engine().failure()->kind, ErrorKind::kMachineRefused);
  engine_.reset();  // it can be ended all the same
  EXPECT_EQ(host_gpu(0).counts().allocated_bytes, 0U);
}

// Nothing is asked of the GPU any more, and the server is told as by a request's pass.
TEST_F(GpuEngineTest, a_measurement_that_loses_its_gpu_is_the_engines_end_too) {
  const auto tokens = some_tokens(8, 3);
  const std::function<Result<void>()> tasks[] = {
      [&]() -> Result<void> {
        const auto measured = engine_->measure({.prompt_tokens = 8, .generated_tokens = 2});
        return measured ? Result<void>() : std::unexpected(measured.error());
      },
      [&] {
        return engine_->compute_logits({.sequences = {tokens}, .generated = true},
                                       [](size_t, size_t, std::span<const float>) {});
      }};
  for (const auto& task : tasks) {
    auto opened = open();
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    engine_ = std::move(*opened);
    int heard = 0;
    engine_->set_failure_handler([&](const Error&) { ++heard; });
    ASSERT_TRUE(engine_->load().has_value());
    ASSERT_TRUE(task().has_value());
    host_gpu(0).lose(8);
    const auto failed = task();
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().kind, ErrorKind::kMachineRefused);
    EXPECT_THAT(failed.error().message, HasSubstr("gpu0"));
    EXPECT_EQ(heard, 1);
    ASSERT_TRUE(engine_->failure().has_value());
    EXPECT_EQ(engine_->failure()->message, failed.error().message);
    const size_t calls = host_gpu(0).counts().calls;
    for (const auto& later : tasks) {
      const auto refused = later();
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().message, failed.error().message);
    }
    const auto late = engine_->submit(request("late", 1));
    ASSERT_FALSE(late.has_value());
    EXPECT_THAT(late.error().message, HasSubstr("the engine has failed"));
    EXPECT_EQ(host_gpu(0).counts().calls, calls);
    engine_.reset();
    host_gpu(0).reset();
  }
}

// Between two requests of one pass: of the second a row is to be fetched.
TEST_F(GpuEngineTest, a_gpu_that_is_lost_before_a_row_is_fetched_ends_the_engine) {
  engine();
  NewsGate gate;
  Answer holding;
  hold(gate, holding);
  Answer first;
  Request losing = request("Once", 100);
  losing.on_output = [pass = first.callback()](Output&& output) {
    if (!output.finish) host_gpu(0).lose();
    pass(std::move(output));
  };
  ASSERT_TRUE(engine().submit(std::move(losing)).has_value());
  Answer second;
  Request fetching = request("Once", 100);
  fetching.logprobs = 0;
  submit(std::move(fetching), second);
  gate.open();
  for (Answer* answer : {&first, &second}) {
    EXPECT_EQ(answer->wait(), FinishReason::kError);
    EXPECT_THAT(answer->error(), HasSubstr("the GPU is lost"));
  }
  // It had no token yet: the pass that gave the first one's was its own as well.
  EXPECT_EQ(second.generated(), 0U);
  EXPECT_TRUE(engine().failure().has_value());
}

TEST_F(GpuEngineTest, a_gpu_that_is_lost_during_the_load_is_the_loads_failure) {
  host_gpu(0).lose(30);
  auto opened = open();
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const auto loaded = (*opened)->load();
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kMachineRefused);
}

TEST_F(GpuEngineTest, speed_can_be_measured_and_the_limit_is_the_memorys) {
  const auto measured = engine().measure({.prompt_tokens = 4, .generated_tokens = 2});
  ASSERT_TRUE(measured.has_value()) << measured.error().message;
  EXPECT_GT(measured->at(0).generate.seconds, 0);
  const auto limits = engine().measure_limits();
  ASSERT_TRUE(limits.has_value());
  EXPECT_EQ(limits->read_bytes_per_second, 3.3e12);
  // More sequences than the GPU's batch has space for are refused, though a pass has the tokens.
  const auto refused = engine().measure({.prompt_tokens = 4, .sequences = 5});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
  host_gpu(0).lose();
  EXPECT_FALSE(engine().measure({.prompt_tokens = 4}).has_value());
}

}  // namespace
}  // namespace lockstep
