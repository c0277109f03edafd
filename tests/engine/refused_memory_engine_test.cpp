// The engine's thread is refused memory anywhere in a request's life: requests end with an error,
// the engine goes on, and what it answers afterwards has the same bits.
#include <spdlog/spdlog.h>

#include <array>
#include <cstdint>

#include "tests/engine/engine_fixture.h"
#include "tests/refusals.h"

namespace lockstep {
namespace {

using refusals::allocations_left;
using refusals::in_a_row;
using refusals::kNever;
using refusals::refused;

class RefusedMemoryOfEngine : public EngineTest {
 protected:
  RefusedMemoryOfEngine() {
    options_.sequence_count = 2;
    options_.kv_pages = 4;  // fewer than the requests below fill: pages are taken from one another
    machine_ = Machine::read(/*with_gpus=*/false);
    machine_->before_pass = []() -> Result<void> {
      refusals::is_chosen = true;
      return {};
    };
    refusals::spares_most = true;
    engine();
    answer_to(request("one pass, so that the engine's thread is known", 1));
  }
  ~RefusedMemoryOfEngine() override {
    spare_all();
    in_a_row = 1;
    refusals::spares_most = false;
  }

  static void spare_all() {
    allocations_left = kNever;
    refusals::left_in_row = 0;
  }

  // Requests of all kinds, more than run at once; one is cancelled.
  void serve_mixed() {
    std::array<Answer, 6> answers;
    Request logprobs = request(long_text_ + "with logprobs", 70);
    logprobs.logprobs = 2;
    Request prompt = request(long_text_ + "with prompt logprobs", 2);
    prompt.prompt_logprobs = 1;
    Request embedding = request("an embedding", 1);
    embedding.embedding = true;
    Request overdue = request("overdue", 50);
    overdue.deadline_seconds = 1e-6;
    overdue.tenant = "another";
    submit(std::move(logprobs), answers[0]);
    submit(request(long_text_ + "plain", 70), answers[1]);
    submit(std::move(prompt), answers[2]);
    submit(std::move(embedding), answers[3]);
    submit(std::move(overdue), answers[4]);
    submit(request("cancelled", 100), answers[5]);
    engine().cancel(last_id_);
    for (Answer& answer : answers) answer.wait();
  }

  // The engine's thread tells an answer's end before it counts it. A measurement runs on that
  // thread after both, and only if no request is left.
  EngineStatistics statistics_at_rest() {
    const auto measured = engine().measure({.prompt_tokens = 1});
    EXPECT_TRUE(measured.has_value()) << measured.error().message;
    return engine().statistics();
  }

  // Refuses `row` allocations from each number on, until none is refused any more.
  void refuse_each(int64_t row, int64_t stride) {
    constexpr int64_t kMost = 200'000;
    const std::string expected = answer_to(request("Once upon", 8));
    in_a_row = row;
    for (int64_t number = 0; number < kMost; number += stride) {
      const int64_t before = refused;
      allocations_left = number;
      serve_mixed();
      spare_all();
      ASSERT_FALSE(engine().failure().has_value()) << engine().failure()->message;
      ASSERT_EQ(answer_to(request("Once upon", 8)), expected) << "after allocation " << number;
      const EngineStatistics statistics = statistics_at_rest();
      ASSERT_EQ(statistics.requests_running + statistics.requests_waiting, 0U) << number;
      ASSERT_EQ(statistics.waiting_prompt_tokens, 0U) << number;
      ASSERT_EQ(statistics.kv_pages_free + statistics.kv_pages_cached, statistics.kv_pages);
      if (refused == before) {
        EXPECT_GT(number, 100);
        return;
      }
    }
    FAIL() << "more than " << kMost << " allocations";
  }

  const std::string long_text_ = "a text that fills a page of the cache and a part of the next, ";
};

TEST_F(RefusedMemoryOfEngine, one_refusal_costs_requests_and_not_the_engine) {
  refuse_each(1, 7);
}

TEST_F(RefusedMemoryOfEngine, many_in_a_row_do_not_either) {
  refuse_each(300, 23);
}

// A measurement runs on the engine's thread as requests do, and uses the same pages.
TEST_F(RefusedMemoryOfEngine, a_refusal_costs_a_measurement_and_not_the_engine) {
  constexpr int64_t kMost = 10'000;
  const std::string expected = answer_to(request("Once upon", 8));
  for (int64_t number = 0; number < kMost; ++number) {
    const int64_t before = refused;
    allocations_left = number;
    const auto measured =
        engine().measure({.prompt_tokens = 20, .generated_tokens = 2, .repeats = 1});
    spare_all();
    ASSERT_EQ(answer_to(request("Once upon", 8)), expected) << "after allocation " << number;
    ASSERT_FALSE(engine().failure().has_value()) << engine().failure()->message;
    if (refused == before) {
      EXPECT_TRUE(measured.has_value()) << measured.error().message;
      EXPECT_GT(number, 10);
      return;
    }
    if (measured) continue;  // what follows it was refused
    EXPECT_EQ(measured.error().kind, ErrorKind::kMachineRefused) << number;
  }
  FAIL() << "more than " << kMost << " allocations";
}

TEST_F(EngineTest, a_cancel_takes_no_memory) {
  std::array<Answer, 4> answers;
  std::array<RequestId, 3> ids = {};
  NewsGate gate;
  hold(gate, answers[3]);
  for (size_t i = 0; i < ids.size(); ++i) {
    submit(request("told to end", 100), answers[i]);
    ids[i] = last_id_;
  }
  const int64_t before = refused;
  refusals::spares_most = true;  // this thread alone is refused
  refusals::is_chosen = true;
  refusals::refuses_all = true;
  for (const RequestId id : ids) engine().cancel(id);
  engine().cancel(ids[0]);
  engine().cancel(ids[2] + 1);  // there is none
  refusals::refuses_all = false;
  refusals::is_chosen = false;
  refusals::spares_most = false;
  gate.open();
  EXPECT_EQ(refused, before);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(answers[i].wait(), FinishReason::kCancelled);
  EXPECT_EQ(answers[3].wait(), FinishReason::kLength);
}

}  // namespace
}  // namespace lockstep
