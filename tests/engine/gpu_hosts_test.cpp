// Engines of several hosts in one process, whose ranks are simulated GPUs that a fake NCCL joins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/engine/collectives/cuda/host_nccl.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/hosts/test_hosts.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

using namespace test;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kHostsMost = 3;
constexpr size_t kPromptMost = 100;  // tokens: some passes' of the fixture's

// The GPUs of a machine, none of which reaches another.
std::vector<Gpu> gpus_of(std::span<const int> indices) {
  std::vector<Gpu> gpus;
  for (const int index : indices) {
    gpus.push_back(simulated_gpu(index, -1));
    for (const int other : indices) {
      gpus.back().links.push_back(other == index ? GpuLink::kSelf : GpuLink::kHost);
    }
  }
  return gpus;
}

struct Collected {
  std::vector<TokenId> tokens = {};
  std::vector<float> logprobs = {};
  std::string text = {};

  bool operator==(const Collected&) const = default;
};

class GpuHosts : public EngineTest {
 protected:
  using Engines = std::vector<std::unique_ptr<Engine>>;

  GpuHosts() {
    host_nccl().reset();
    for (int gpu = 0; gpu < static_cast<int>(kHostsMost); ++gpu) host_gpu(gpu).reset();
    options_.devices = "gpu";
    options_.worker_count = 0;
  }

  Machine machine_with(std::span<const int> gpus) const {
    Machine machine = Machine::read(/*with_gpus=*/false);
    machine.topology.gpus = gpus_of(gpus);
    machine.gpu_platform = &platform_;
    return machine;
  }

  // One host of several, or one alone.
  Result<std::unique_ptr<Engine>> start(const HostOptions& host, std::span<const int> gpus) const {
    EngineOptions options = options_;
    options.hosts = host;
    auto engine = Engine::open(options, machine_with(gpus));
    if (!engine) return engine;
    if (auto loaded = (*engine)->load(); !loaded) return std::unexpected(loaded.error());
    return engine;
  }

  // Hosts that have these GPUs each, started at the same time.
  std::vector<Result<std::unique_ptr<Engine>>> try_all(const std::vector<std::vector<int>>& gpus) {
    std::vector<Result<std::unique_ptr<Engine>>> started(gpus.size());
    std::vector<std::jthread> threads;
    for (size_t host = 0; host < gpus.size(); ++host) {
      HostOptions options = host_options(gpus.size(), host, leader_);
      options.patience = patience_;
      threads.emplace_back([this, options, &own = gpus[host], &result = started[host]] {
        result = start(options, own);
      });
    }
    threads.clear();
    return started;
  }

  Engines start_all(const std::vector<std::vector<int>>& gpus) {
    Engines engines;
    for (auto& started : try_all(gpus)) {
      EXPECT_TRUE(started.has_value()) << started.error().message;
      engines.push_back(started ? std::move(*started) : nullptr);
    }
    return engines;
  }

  static void submit_to(Engine& engine, Request asked, Answer& answer) {
    asked.on_output = answer.callback();
    const auto id = engine.submit(std::move(asked));
    if (!id) throw std::runtime_error(id.error().message);
  }

  Collected answer_of(Engine& engine, const std::string& prompt, const SamplingParameters& sampling,
                      bool logprobs) {
    Request asked;
    asked.prompt = engine.tokenizer().encode(prompt, {});
    if (asked.prompt.size() > kPromptMost) asked.prompt.resize(kPromptMost);
    asked.max_tokens = 5;
    asked.ignore_eos = true;
    asked.sampling = sampling;
    if (logprobs) asked.logprobs = 3;
    Answer answer;
    submit_to(engine, std::move(asked), answer);
    EXPECT_EQ(answer.wait(), FinishReason::kLength) << answer.error();
    Collected collected = {.text = answer.text()};
    for (const OutputToken& token : answer.tokens()) {
      collected.tokens.push_back(token.token);
      collected.logprobs.push_back(token.logprob);
      for (const TokenLogprob& top : token.top) collected.logprobs.push_back(top.logprob);
    }
    return collected;
  }

  static void submit_long(Engine& engine, Answer& answer) {
    Request asked;
    asked.prompt = engine.tokenizer().encode("Once upon a time", {});
    asked.max_tokens = 150;
    asked.ignore_eos = true;
    submit_to(engine, std::move(asked), answer);
  }

  // A short prompt, which is computed as generated tokens are, and a long one; the likeliest token,
  // one that the GPU draws, and log-probabilities, for which whole rows of logits are fetched.
  std::vector<Collected> all_answers(Engine& engine) {
    std::string lengthy;
    while (lengthy.size() < 300) lengthy += "There was once a king who had three sons. ";
    std::vector<Collected> answers;
    for (const std::string& prompt : {std::string("Once upon a time"), lengthy}) {
      answers.push_back(answer_of(engine, prompt, {.temperature = 0}, false));
      answers.push_back(answer_of(engine, prompt, {.temperature = 1, .seed = 6}, false));
      answers.push_back(answer_of(engine, prompt, {.temperature = 0}, true));
    }
    return answers;
  }

  std::vector<float> embedding_of(Engine& engine) {
    Request asked;
    asked.prompt = engine.tokenizer().encode("Once upon a time there was", {});
    asked.embedding = true;
    Answer answer;
    submit_to(engine, std::move(asked), answer);
    answer.wait();
    EXPECT_EQ(answer.error(), "");
    return answer.embedding();
  }

  const GpuPlatform platform_ = test_gpus_by_nccl();
  std::string leader_ = own_address();
  std::chrono::milliseconds patience_ = std::chrono::seconds(30);
};

TEST_F(GpuHosts, answers_are_those_of_one_host_with_as_many_gpus) {
  const std::vector<std::vector<std::vector<int>>> cases = {{{0}, {1}}, {{0, 1}, {2}}};
  for (const auto& gpus : cases) {
    SCOPED_TRACE(gpus.front().size());
    std::vector<int> all;
    for (const auto& own : gpus) all.insert(all.end(), own.begin(), own.end());
    std::vector<Collected> expected;
    std::vector<float> embedding;
    {
      auto alone = start({}, all);
      ASSERT_TRUE(alone.has_value()) << alone.error().message;
      expected = all_answers(**alone);
      embedding = embedding_of(**alone);
    }
    leader_ = own_address();
    const Engines engines = start_all(gpus);
    ASSERT_TRUE(engines[0] && engines[1]);
    EXPECT_EQ(all_answers(*engines[0]), expected);
    EXPECT_EQ(embedding_of(*engines[0]), embedding);
    EXPECT_EQ(engines[0]->statistics().ranks.size(), gpus[0].size());
    EXPECT_EQ(engines[1]->statistics().ranks.size(), gpus[1].size());
  }
}

// Nobody else tells the leader's GPU that its neighbour does not come: NCCL waits for ever.
TEST_F(GpuHosts,
       requests_fail_when_a_host_leaves_during_a_pass_and_the_next_group_has_its_weights) {
  std::vector<Collected> expected;
  {
    Engines engines = start_all({{0}, {1}});
    ASSERT_TRUE(engines[0] && engines[1]);
    expected = all_answers(*engines[0]);
    host_nccl().wait_for_ever(std::chrono::seconds(60));
    Answer answer;
    submit_long(*engines[0], answer);
    answer.wait_for_text();
    const auto begin = std::chrono::steady_clock::now();
    engines[1].reset();
    EXPECT_EQ(answer.wait(), FinishReason::kError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    EXPECT_THAT(answer.error(), HasSubstr("host 1"));
    ASSERT_TRUE(engines[0]->failure().has_value());
    EXPECT_THAT(engines[0]->failure()->message, HasSubstr("host 1"));
  }
  host_nccl().reset();
  leader_ = own_address();
  Engines engines = start_all({{0}, {1}});
  ASSERT_TRUE(engines[0] && engines[1]);
  const size_t allocations = host_gpu(1).counts().allocations;
  const size_t joined = host_nccl().counts().joined;
  engines[0].reset();
  HostOptions leader = host_options(2, 0, leader_);
  auto again = start(leader, std::vector<int>{0});
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(all_answers(**again), expected);
  EXPECT_FALSE(engines[1]->failure().has_value());
  // The follower has joined again and taken no memory, so it has read no weight.
  EXPECT_EQ(host_nccl().counts().joined, joined + 2);
  EXPECT_EQ(host_gpu(1).counts().allocations, allocations);
}

// The leader's GPU is lost in the midst of a pass: the follower's waits for it until it is aborted.
TEST_F(GpuHosts, a_follower_whose_pass_was_aborted_computes_in_the_next_group) {
  Engines engines = start_all({{0}, {1}});
  ASSERT_TRUE(engines[0] && engines[1]);
  const auto expected = all_answers(*engines[0]);
  host_nccl().wait_for_ever(std::chrono::seconds(60));
  Answer answer;
  submit_long(*engines[0], answer);
  answer.wait_for_text();
  host_gpu(0).lose();
  EXPECT_EQ(answer.wait(), FinishReason::kError);
  EXPECT_THAT(answer.error(), HasSubstr("gpu0"));
  engines[0].reset();
  host_gpu(0).reset();
  auto again = start(host_options(2, 0, leader_), std::vector<int>{0});
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(all_answers(**again), expected);
  EXPECT_FALSE(engines[1]->failure().has_value());
}

TEST_F(GpuHosts, a_follower_whose_own_gpu_is_lost_ends) {
  Engines engines = start_all({{0}, {1}});
  ASSERT_TRUE(engines[0] && engines[1]);
  Answer answer;
  submit_long(*engines[0], answer);
  answer.wait_for_text();
  host_gpu(1).lose();
  EXPECT_EQ(answer.wait(), FinishReason::kError);
  EXPECT_THAT(answer.error(), AllOf(HasSubstr("host 1"), HasSubstr("gpu1")));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!engines[1]->failure() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(engines[1]->failure().has_value());
  EXPECT_THAT(engines[1]->failure()->message, HasSubstr("gpu1"));
}

TEST_F(GpuHosts, a_host_whose_gpus_are_not_joined_is_named_on_all) {
  host_nccl().refuse_rank(1);
  const auto started = try_all({{0}, {1}});
  for (const auto& host : started) {
    ASSERT_FALSE(host.has_value());
    EXPECT_THAT(host.error().message, HasSubstr("are not joined by a fake NCCL"));
    EXPECT_THAT(host.error().message, HasSubstr("host 0"));
  }
  EXPECT_THAT(started[0].error().message, HasSubstr("host 1"));
}

TEST_F(GpuHosts, gpus_of_another_kind_are_refused_with_both_names) {
  std::vector<Result<std::unique_ptr<Engine>>> started(2);
  std::vector<std::jthread> threads;
  for (size_t host = 0; host < 2; ++host) {
    threads.emplace_back([&, host] {
      EngineOptions options = options_;
      options.hosts = host_options(2, host, leader_);
      const int own[] = {static_cast<int>(host)};
      Machine machine = machine_with(own);
      if (host == 1) machine.topology.gpus.front().name = "Other GPU";
      started[host] = Engine::open(options, machine);
    });
  }
  threads.clear();
  for (const auto& host : started) {
    ASSERT_FALSE(host.has_value());
    EXPECT_THAT(host.error().message,
                AllOf(HasSubstr("Simulated GPU (sm_90, 81920 MiB)"), HasSubstr("Other GPU"),
                      HasSubstr("--devices names those")));
  }
}

TEST_F(GpuHosts, what_does_not_encrypt_needs_a_word_unless_the_hosts_are_this_machine) {
  const auto refusal = [&](const HostOptions& host) {
    EngineOptions options = options_;
    options.hosts = host;
    options.hosts.is_checked_only = true;
    const int own[] = {0};
    const auto opened = Engine::open(options, machine_with(own));
    return opened ? "" : opened.error().message;
  };
  HostOptions far = host_options(2, 0, "10.77.0.1:7070", some_secret());
  EXPECT_THAT(refusal(far), AllOf(HasSubstr("by nccl"), HasSubstr("is not encrypted"),
                                  HasSubstr("--insecure-hosts true")));
  far.may_be_insecure = true;
  EXPECT_EQ(refusal(far), "");
  HostOptions near = host_options(2, 0, leader_);
  EXPECT_EQ(refusal(near), "");
  near.transport = "ucx";
  EXPECT_THAT(refusal(near), HasSubstr("leave out --hosts-transport ucx"));
  near.transport = "nccl";
  EXPECT_EQ(refusal(near), "");
  options_.strategy = "layers";
  EXPECT_THAT(refusal(near), HasSubstr("layers is for the GPUs of one host"));
  options_.strategy = "auto";
  options_.devices = "cpu";
  EXPECT_THAT(refusal(near), HasSubstr("joins GPUs, and processors are to compute"));
}

}  // namespace
}  // namespace lockstep
