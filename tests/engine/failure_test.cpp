// A pass that fails: who is told, what is refused afterwards, and that nothing hangs.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/engine/engine_fixture.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class FailureTest : public EngineTest {
 protected:
  FailureTest() {
    machine_ = Machine::read(/*with_gpus=*/false);
    machine_->before_pass = [this]() -> Result<void> {
      if (passes_left_.fetch_sub(1) > 0) return {};
      return machine_refused("gpu0 is lost");
    };
  }

  std::atomic<int> passes_left_ = 0;
};

TEST_F(FailureTest, every_request_ends_with_the_reason_and_later_ones_are_refused) {
  passes_left_ = 3;
  options_.sequence_count = 2;
  Answer answers[5];  // more than run at once
  NewsGate gate;
  Answer holding;
  hold(gate, holding, 100);
  for (Answer& answer : answers) submit(request("Once", 100), answer);
  gate.open();
  EXPECT_EQ(holding.wait(), FinishReason::kError);
  for (Answer& answer : answers) {
    EXPECT_EQ(answer.wait(), FinishReason::kError);
    EXPECT_THAT(answer.error(), HasSubstr("gpu0 is lost"));
  }
  Request late = request("late", 1);
  const auto refused = engine().submit(std::move(late));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("the engine has failed"));
  EXPECT_FALSE(engine().check_queue("").has_value());
  ASSERT_TRUE(engine().failure().has_value());
  EXPECT_EQ(engine().failure()->message, "gpu0 is lost");
  engine().drain(60);  // returns: nothing is left
  const EngineStatistics statistics = engine().statistics();
  EXPECT_EQ(statistics.steps, 3U);
  EXPECT_EQ(statistics.finished_error, 6U);
  EXPECT_EQ(statistics.requests_running, 0U);
  EXPECT_EQ(statistics.requests_waiting, 0U);
  EXPECT_EQ(statistics.waiting_prompt_tokens, 0U);
  EXPECT_EQ(statistics.rejected[static_cast<size_t>(Rejection::kFailed)], 2U);
}

TEST_F(FailureTest, the_handler_hears_of_it_once_and_before_the_clients) {
  std::atomic<int> heard = 0;
  std::atomic<int> heard_before_an_end = 0;
  auto opened = open();
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  engine_ = std::move(*opened);
  EXPECT_FALSE(engine_->failure().has_value());
  engine_->set_failure_handler([&](const Error& error) {
    EXPECT_EQ(error.message, "gpu0 is lost");
    ++heard;
  });
  ASSERT_TRUE(engine_->load().has_value());
  EXPECT_FALSE(engine_->failure().has_value());
  Answer answers[2];
  std::vector<Request> requests;
  for (Answer& answer : answers) {
    requests.push_back(request("Once", 4));
    requests.back().on_output = [&, tell = answer.callback()](Output&& output) {
      if (output.finish) heard_before_an_end += heard;
      tell(std::move(output));
    };
  }
  ASSERT_TRUE(engine_->submit_all(std::move(requests)).has_value());
  for (Answer& answer : answers) EXPECT_EQ(answer.wait(), FinishReason::kError);
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(heard_before_an_end, 2);
}

TEST_F(FailureTest, requests_that_come_while_it_fails_are_told_or_refused) {
  passes_left_ = 20;
  std::atomic<int> ended = 0;
  std::atomic<int> taken = 0;
  engine();
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&] {
      while (true) {
        Request asked = request("Once", 1);
        asked.on_output = [&](Output&& output) { ended += output.finish.has_value() ? 1 : 0; };
        if (!engine_->submit(std::move(asked))) return;
        ++taken;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  engine_->drain(60);
  EXPECT_EQ(ended, taken);
  EXPECT_GT(taken, 0);
}

TEST_F(FailureTest, a_measurement_is_refused_when_the_engine_has_failed) {
  Answer answer;
  submit(request("Once", 1), answer);
  EXPECT_EQ(answer.wait(), FinishReason::kError);
  const auto measured = engine().measure({.prompt_tokens = 4});
  ASSERT_FALSE(measured.has_value());
  EXPECT_EQ(measured.error().message, "gpu0 is lost");
}

}  // namespace
}  // namespace lockstep
