// The engine through its one door: requests, text, stops, log-probabilities, company, and an end.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "engine/kernels/packed_matrix.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/text/text_stream.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep {
namespace {

TEST_F(EngineTest, the_same_seed_gives_the_same_text_alone_and_in_company) {
  const std::string alone = answer_to(request("the hen and the thing", 60));
  EXPECT_FALSE(alone.empty());
  EXPECT_EQ(answer_to(request("the hen and the thing", 60)), alone);
  EXPECT_NE(answer_to(request("the hen and the thing", 60, 8)), alone);

  std::vector<std::unique_ptr<Answer>> answers;
  for (uint64_t index = 0; index < 12; ++index) {
    answers.push_back(std::make_unique<Answer>());
    const bool same = index % 3 == 0;
    submit(same ? request("the hen and the thing", 60)
                : request(std::string(10 + 9 * index, 'x'), 20, index),
           *answers.back());
  }
  for (size_t index = 0; index < answers.size(); ++index) {
    EXPECT_EQ(answers[index]->wait(), FinishReason::kLength);
    EXPECT_TRUE(index % 3 != 0 || answers[index]->text() == alone) << index;
  }
}

// Whole answers, sampled, alone and in company, whatever the work is split over.
TEST_F(EngineTest, any_ranks_shares_and_workers_give_the_same_answers) {
  struct Placing {
    uint32_t ranks;
    std::vector<double> shares;
    uint32_t workers;
  };
  const std::vector<Placing> placings = {{1, {}, 2},        {2, {}, 1}, {2, {3, 1}, 2},
                                         {3, {5, 2, 1}, 1}, {4, {}, 1}, {7, {}, 2}};
  std::vector<std::string> first;
  for (const Placing& placing : placings) {
    SCOPED_TRACE(std::to_string(placing.ranks) + " ranks");
    options_.rank_count = placing.ranks;
    options_.shares = placing.shares;
    options_.worker_count = placing.workers;
    engine_.reset();
    EXPECT_EQ(engine().model().rank_count, placing.ranks);
    std::vector<std::string> texts = {answer_to(request("the hen and the thing", 30))};
    std::vector<std::unique_ptr<Answer>> answers;
    for (uint64_t index = 0; index < 4; ++index) {
      answers.push_back(std::make_unique<Answer>());
      submit(request(std::string(5 + 30 * index, 'a'), 20, index), *answers.back());
    }
    for (const auto& answer : answers) {
      answer->wait();
      texts.push_back(answer->text());
    }
    if (first.empty()) first = texts;
    EXPECT_EQ(texts, first);
    const EngineStatistics statistics = engine().statistics();
    ASSERT_EQ(statistics.ranks.size(), placing.ranks);
    for (const RankStatistics& rank : statistics.ranks) {
      EXPECT_EQ(rank.wrong_node_bytes.value_or(0), 0U);
      EXPECT_EQ(rank.exchange_bytes > 0, placing.ranks > 1);
    }
  }
}

TEST_F(EngineTest, contradicting_ranks_and_shares_are_refused) {
  options_.rank_count = 2;
  options_.shares = {1, 2, 3};
  const auto engine = Engine::open(options_);
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().kind, ErrorKind::kInvalidInput);
}

TEST_F(EngineTest, the_plan_tells_what_the_engine_then_does) {
  options_.rank_count = 2;
  options_.worker_count = 1;
  const auto plan = plan_machine(options_, /*measure=*/true);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_TRUE(plan->fits) << plan->misfit;
  ASSERT_EQ(plan->ranks.size(), 2U);
  const EngineStatistics statistics = [&] {
    engine();
    return engine_->statistics();
  }();
  uint64_t held = 0;
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(plan->ranks[rank].weight_bytes, statistics.ranks[rank].weight_bytes);
    EXPECT_EQ(plan->ranks[rank].kv_bytes, statistics.ranks[rank].kv_bytes);
    EXPECT_EQ(plan->ranks[rank].scratch_bytes, statistics.ranks[rank].scratch_bytes);
    EXPECT_GT(plan->ranks[rank].bytes_per_second, 0);
    held += plan->ranks[rank].weight_bytes;
  }
  for (const MachinePlan::Replica& replica : plan->replicas) held -= replica.extra_bytes;
  // Slices begin at whole cache lines.
  EXPECT_NEAR(static_cast<double>(held), static_cast<double>(plan->model_weight_bytes), 4096);
  EXPECT_FALSE(plan->verdict.empty());
}

// A token reads all dense weights of a mixture, and as many experts as it is routed to.
TEST_F(EngineTest, the_plan_counts_what_a_token_reads_of_a_mixture) {
  options_.model = source_dir() + "/tests/fixtures/logits/mixtral-mqa-f32.gguf";
  options_.rank_count = 1;
  const auto plan = plan_machine(options_, /*measure=*/true);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  const auto file = GgufFile::open(options_.model);
  const auto model = build_model({.file = *file});
  const auto packed_bytes = [&](WeightId id) {
    const Weight& weight = model->graph.weights()[id];
    const size_t panels = (weight.rows + kPanelRows - 1) / kPanelRows;
    return panels * panel_bytes(weight.format, weight.columns);
  };
  uint64_t dense = 0;
  uint64_t experts = 0;
  for (const GraphNode& node : model->graph.nodes()) {
    if (node.operation == Operation::kMatmul) dense += packed_bytes(node.weight);
    if (node.experts.empty()) continue;
    const size_t chosen = model->graph.producer(node.inputs[1]).chosen_count;
    EXPECT_LT(chosen, node.experts.size());
    experts += chosen * packed_bytes(node.experts.front());
  }
  const MachinePlan::Rank& rank = plan->ranks.front();
  EXPECT_GT(experts, 0U);
  EXPECT_EQ(rank.read_expert_bytes, experts);
  EXPECT_EQ(rank.read_bytes, dense + experts);
  EXPECT_DOUBLE_EQ(plan->read_seconds, rank.seconds_per_token);
}

TEST_F(EngineTest, a_stop_string_ends_the_text_before_it_across_tokens) {
  Answer whole;
  submit(request("once", 60), whole);
  whole.wait();
  // Two neighbouring plain characters of the text: they lie in two tokens, as all tokens but two
  // are single bytes.
  size_t at = 5;
  while (at + 2 < whole.text().size() && (whole.text()[at] < 0 || whole.text()[at + 1] < 0 ||
                                          whole.text().find(whole.text().substr(at, 2)) != at)) {
    ++at;
  }
  ASSERT_LT(at + 2, whole.text().size()) << "the text holds no pair that occurs once";
  Request stopped = request("once", 60);
  stopped.stop = {"never in there at all", whole.text().substr(at, 2)};
  stopped.logprobs = 0;
  Answer answer;
  submit(std::move(stopped), answer);
  EXPECT_EQ(answer.wait(), FinishReason::kStop);
  EXPECT_EQ(answer.text(), whole.text().substr(0, at));
  EXPECT_LT(answer.tokens().size(), answer.generated());
}

TEST_F(EngineTest, tokens_carry_their_logprobs_and_alternatives) {
  Request asked = request("a b c", 8);
  asked.logprobs = 3;
  asked.prompt_logprobs = 2;
  asked.sampling.temperature = 0;
  const std::vector<TokenId> prompt = asked.prompt;
  Answer answer;
  submit(std::move(asked), answer);
  EXPECT_EQ(answer.wait(), FinishReason::kLength);
  ASSERT_EQ(answer.tokens().size(), 8U);
  for (const OutputToken& token : answer.tokens()) {
    ASSERT_EQ(token.top.size(), 3U);
    EXPECT_EQ(token.top[0].token, token.token);
    EXPECT_EQ(token.top[0].logprob, token.logprob);
    EXPECT_GE(token.top[0].logprob, token.top[1].logprob);
    EXPECT_LT(token.logprob, 0);
  }
  ASSERT_EQ(answer.prompt().size(), prompt.size());
  EXPECT_TRUE(std::isnan(answer.prompt()[0].logprob));
  for (size_t index = 1; index < prompt.size(); ++index) {
    EXPECT_EQ(answer.prompt()[index].token, prompt[index]);
    EXPECT_LT(answer.prompt()[index].logprob, 0);
    EXPECT_EQ(answer.prompt()[index].top.size(), 2U);
  }
}

TEST_F(EngineTest, the_token_that_ends_an_answer_has_its_logprob_and_no_text) {
  Request asked = request("once", 12);
  asked.sampling.temperature = 0;
  asked.logprobs = 1;
  Request stopped = asked;
  Answer whole;
  submit(std::move(asked), whole);
  whole.wait();
  ASSERT_EQ(whole.tokens().size(), 12U);
  const TokenId ending = whole.tokens()[5].token;
  const auto first = std::ranges::find(whole.tokens(), ending, &OutputToken::token);
  const auto before = static_cast<size_t>(first - whole.tokens().begin());
  stopped.stop_tokens = {ending};
  Answer answer;
  submit(std::move(stopped), answer);
  EXPECT_EQ(answer.wait(), FinishReason::kStop);
  EXPECT_EQ(answer.generated(), before + 1);
  ASSERT_EQ(answer.tokens().size(), before + 1);
  EXPECT_EQ(answer.tokens().back().token, ending);
  EXPECT_EQ(answer.tokens().back().bytes, "");
  EXPECT_EQ(answer.tokens().back().logprob, first->logprob);
  EXPECT_EQ(answer.tokens().back().top.size(), 1U);
}

TEST_F(EngineTest, prompt_logprobs_are_the_same_in_any_chunks) {
  const auto prompt_logprobs = [&](uint32_t batch_tokens) {
    options_.batch_tokens = batch_tokens;
    engine_.reset();
    Request asked = request(std::string(100, 'q') + "the end", 0);
    asked.prompt_logprobs = 0;
    Answer answer;
    submit(std::move(asked), answer);
    EXPECT_EQ(answer.wait(), FinishReason::kLength);
    EXPECT_EQ(answer.generated(), 0U);
    std::vector<float> logprobs;
    for (const OutputToken& token : answer.prompt()) logprobs.push_back(token.logprob);
    logprobs.erase(logprobs.begin());
    return logprobs;
  };
  const auto small = prompt_logprobs(16);
  EXPECT_EQ(small.size(), 105U);
  EXPECT_EQ(small, prompt_logprobs(128));
}

TEST_F(EngineTest, the_text_of_the_tokens_is_the_text) {
  Request asked = request("bytes", 100);
  asked.logprobs = 0;
  asked.sampling.temperature = 1.5F;
  Answer answer;
  submit(std::move(asked), answer);
  answer.wait();
  EXPECT_EQ(answer.tokens().size(), 100U);
  std::vector<TokenId> ids;
  for (const OutputToken& token : answer.tokens()) ids.push_back(token.token);
  TextStream stream(engine().tokenizer(), true, false);
  std::string text;
  for (const TokenId id : ids) text += stream.push(id);
  EXPECT_EQ(answer.text(), text + stream.finish());
}

TEST_F(EngineTest, end_tokens_are_not_sampled_below_min_tokens) {
  // The vocabulary's end token is made by far the most likely one.
  Request asked = request("x", 40);
  asked.ignore_eos = false;
  asked.min_tokens = 12;
  asked.sampling.logit_bias = {{engine().tokenizer().end_tokens()[0], 100.0F}};
  Answer answer;
  submit(std::move(asked), answer);
  EXPECT_EQ(answer.wait(), FinishReason::kStop);
  EXPECT_EQ(answer.generated(), 13U);
}

TEST_F(EngineTest, what_can_never_fit_is_refused_with_the_numbers) {
  const auto refused = engine().submit(request(std::string(150, 'x'), 43));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
  for (const char* number : {"192", "193", "150", "43"}) {
    EXPECT_NE(refused.error().message.find(number), std::string::npos) << refused.error().message;
  }
  EXPECT_EQ(answer_to(request(std::string(150, 'x'), 42)).empty(), false);
  Request foreign = request("x", 4);
  foreign.prompt = {5, 100000};
  const auto unknown = engine().submit(std::move(foreign));
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("100000"), std::string::npos);
}

TEST_F(EngineTest, a_cancelled_request_ends_and_its_pages_are_free) {
  Answer running;
  submit(request("long", 180), running);
  const RequestId running_id = last_id_;
  running.wait_for_text();
  std::vector<std::unique_ptr<Answer>> queued;
  for (int index = 0; index < 6; ++index) {
    queued.push_back(std::make_unique<Answer>());
    submit(request("queued", 170), *queued.back());
    engine().cancel(last_id_);
  }
  engine().cancel(running_id);
  engine().cancel(999'999);
  for (auto& answer : queued) {
    const FinishReason reason = answer->wait();
    EXPECT_TRUE(reason == FinishReason::kCancelled || reason == FinishReason::kLength);
  }
  running.wait();
  EXPECT_FALSE(answer_to(request("after", 10)).empty());
  const EngineStatistics statistics = engine().statistics();
  EXPECT_EQ(statistics.finished_stop + statistics.finished_length + statistics.finished_cancelled +
                statistics.finished_error,
            8U);
}

TEST_F(EngineTest, a_drained_engine_takes_no_more_and_has_ended_everything) {
  Answer answer;
  submit(request("the end is near", 170), answer);
  engine().drain(0);
  const FinishReason reason = answer.wait();
  EXPECT_TRUE(reason == FinishReason::kCancelled || reason == FinishReason::kLength);
  const auto refused = engine().submit(request("too late", 4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnavailable);
  const EngineStatistics statistics = engine().statistics();
  EXPECT_EQ(statistics.kv_pages_free + statistics.kv_pages_cached, statistics.kv_pages);
}

TEST_F(EngineTest, a_full_queue_refuses) {
  options_.waiting_requests = 2;
  options_.sequence_count = 1;
  // The first answer holds the engine's thread, so nothing ends while the others come.
  std::mutex gate;
  std::unique_lock closed(gate);
  Answer first;
  Request holding = request("hold", 2);
  holding.on_output = [&, pass = first.callback()](Output&& output) {
    const std::lock_guard wait(gate);
    pass(std::move(output));
  };
  ASSERT_TRUE(engine().submit(std::move(holding)).has_value());
  std::vector<std::unique_ptr<Answer>> answers;
  for (int index = 0; index < 2; ++index) {
    answers.push_back(std::make_unique<Answer>());
    submit(request("queue", 4), *answers.back());
  }
  const auto refused = engine().submit(request("one too many", 4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(refused.error().message.find("3 requests"), std::string::npos)
      << refused.error().message;
  closed.unlock();
  EXPECT_EQ(first.wait(), FinishReason::kLength);
  for (auto& answer : answers) EXPECT_EQ(answer->wait(), FinishReason::kLength);
  EXPECT_FALSE(answer_to(request("space again", 4)).empty());
}

TEST_F(EngineTest, requests_before_the_load_are_refused_as_unavailable) {
  auto opened = Engine::open(options_);
  ASSERT_TRUE(opened.has_value());
  Request early;
  early.prompt = {1};
  const auto refused = (*opened)->submit(std::move(early));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnavailable);
  EXPECT_FALSE((*opened)->statistics().load.ready);
}

TEST_F(EngineTest, an_unknown_instruction_set_or_kv_format_is_named) {
  options_.instruction_set = "avx9000";
  auto opened = Engine::open(options_);
  ASSERT_FALSE(opened.has_value());
  EXPECT_NE(opened.error().message.find("avx9000"), std::string::npos);
  options_.instruction_set = "";
  options_.kv_format = "f13";
  opened = Engine::open(options_);
  ASSERT_FALSE(opened.has_value());
  EXPECT_NE(opened.error().message.find("f13"), std::string::npos);
  options_.kv_format = "f16";
  options_.kv_value_format = "q3";
  opened = Engine::open(options_);
  ASSERT_FALSE(opened.has_value());
  EXPECT_NE(opened.error().message.find("q3"), std::string::npos);
}

TEST_F(EngineTest, a_measurement_that_does_not_fit_says_what_to_raise) {
  const auto measured = engine().measure({.prompt_tokens = 64, .generated_tokens = 4});
  ASSERT_TRUE(measured.has_value()) << measured.error().message;
  ASSERT_EQ(measured->size(), 1U);
  EXPECT_GT(measured->front().prompt.seconds, 0);
  EXPECT_GT(measured->front().generate.seconds, 0);
  const auto refused = engine().measure({.prompt_tokens = 100'000});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("--context"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
