// Rows go to other hosts before their step has ended, and are awaited block by block.
#include "engine/runtime/hosts/row_exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/runtime/hosts/host_exchange.h"
#include "tests/engine/runtime/loopback_hosts.h"

namespace lockstep {
namespace {

constexpr size_t kRows = 10;
constexpr size_t kBlockRows = 4;
constexpr size_t kWidth = 64;  // of which each host has a half
constexpr size_t kHalfBytes = kWidth / 2 * sizeof(float);
constexpr size_t kHosts = 2;

// A step whose rows, from a byte of the exchange arena on, all hosts read; each writes its part.
FormStep rows_at(size_t byte, size_t rank, size_t hosts) {
  FormStep forms;
  forms.output.forms.columns = kWidth;
  forms.output.forms[ActivationForm::kF32] = {
      .rows = {Arena::kExchange, byte}, .stride_bytes = kWidth * sizeof(float), .prompted = true};
  forms.output.first_column = rank * kWidth / hosts;
  forms.output.columns = kWidth / hosts;
  forms.output.gather = true;
  return forms;
}

Plan plan_without_steps(size_t rank, size_t hosts) {
  Plan plan;
  plan.rank = rank;
  plan.rank_count = hosts;
  plan.batch_tokens = kRows;
  return plan;
}

// Such a step, then a product of its rows, then the same again without one.
Plan plan_of(size_t rank) {
  const FormStep forms = rows_at(0, rank, kHosts);
  Plan plan = plan_without_steps(rank, kHosts);
  plan.steps = {{.work = forms, .meet = Meet::kAllRanks},
                {.work = MatmulStep(), .meet = Meet::kRank},
                {.work = forms, .meet = Meet::kAllRanks}};
  return plan;
}

// One host: its rank's rows are filled with a number.
struct Host {
  Host(LoopbackHosts& group, size_t host, const Batch& batch, float number)
      : rounds(std::vector{plan_of(0), plan_of(1)}, {.of_host = {{0, 1}, {1, 2}}, .host = host}),
        outgoing(rounds.bytes_most()),
        exchange(rounds, outgoing, kBlockRows, kRows) {
    for (size_t row = 0; row < kRows; ++row) {
      std::fill_n(memory.begin() + static_cast<std::ptrdiff_t>(row * kWidth + host * kWidth / 2),
                  kWidth / 2, number);
    }
    addresses[Arena::kExchange] = reinterpret_cast<uintptr_t>(memory.data());
    exchange.begin_pass(group.group(host), batch, std::span(&addresses, 1));
  }

  // The rows before this one have the other host's half, and no others.
  bool has_rows_before(size_t end, size_t other, float number) const {
    for (size_t row = 0; row < kRows; ++row) {
      const float value = memory[row * kWidth + other * kWidth / 2];
      if ((value == number) != (row < end)) return false;
    }
    return true;
  }

  HostRounds rounds;
  std::vector<std::byte> outgoing;
  RowExchange exchange;
  std::vector<float> memory = std::vector<float>(kRows * kWidth);
  ArenaAddresses addresses;
};

Batch prompt() {
  Batch batch;
  batch.tokens.resize(kRows);
  return batch;
}

TEST(RowExchange, sends_a_block_when_all_parts_of_its_rows_are_computed) {
  LoopbackHosts hosts(kHosts);
  const Batch batch = prompt();
  Host host(hosts, 0, batch, 1);
  ASSERT_TRUE(host.exchange.takes(0));
  // A half of rows 0 to 5, then the rest of rows 0 to 3: the first block, and not the second.
  host.exchange.carry(0, {0, 6}, 1, 2);
  EXPECT_EQ(hosts.sent_bytes(0), 0U);
  while (hosts.sent_bytes(0) < kBlockRows * kHalfBytes) host.exchange.carry(0, {0, 4}, 1, 2);
  EXPECT_EQ(hosts.sent_bytes(0), kBlockRows * kHalfBytes);
  // The last block is computed before the one in front of it, and goes behind it.
  host.exchange.carry(0, {8, 10}, 5, 5);
  EXPECT_EQ(hosts.sent_bytes(0), kBlockRows * kHalfBytes);
  host.exchange.carry(0, {4, 6}, 1, 2);
  host.exchange.carry(0, {6, 8}, 2, 2);
  while (hosts.sent_bytes(0) < kRows * kHalfBytes) host.exchange.carry(0, {0, 1}, 0, 1);
}

// Two hosts, of which the first has ended the first step.
class RowExchangeOfTwo : public testing::Test {
 protected:
  RowExchangeOfTwo() {
    one.exchange.carry(0, {0, kRows}, 1, 1);
    one.exchange.end_round(0);
  }

  LoopbackHosts hosts{kHosts};
  const Batch batch = prompt();
  Host one{hosts, 0, batch, 1};
  Host two{hosts, 1, batch, 2};
};

TEST_F(RowExchangeOfTwo, a_product_begins_with_the_rows_that_have_come) {
  one.exchange.await(0);
  EXPECT_TRUE(one.has_rows_before(0, 1, 2));
  while (hosts.sent_bytes(1) < kBlockRows * kHalfBytes) two.exchange.carry(0, {0, 4}, 1, 1);
  one.exchange.await(kBlockRows);
  EXPECT_TRUE(one.has_rows_before(kBlockRows, 1, 2));
  // Behind the step all rows are there, on both.
  std::jthread other([&] {
    two.exchange.end_round(0);
    two.exchange.await_all();
  });
  one.exchange.await_all();
  other.join();
  EXPECT_TRUE(one.has_rows_before(kRows, 1, 2));
  EXPECT_TRUE(two.has_rows_before(kRows, 0, 1));
  EXPECT_TRUE(one.exchange.result() && two.exchange.result());
  EXPECT_EQ(one.exchange.moved_bytes(), 2 * kRows * kHalfBytes);
}

// Another host may be a round ahead: its rows are not put anywhere before the ranks here have met.
TEST_F(RowExchangeOfTwo, rows_of_a_step_that_has_not_begun_here_wait) {
  while (hosts.sent_bytes(0) < kRows * kHalfBytes) one.exchange.carry(0, {0, 1}, 0, 1);
  // All of the first round has come, and the second host has not met there.
  two.exchange.carry(0, {0, kRows}, 1, 1);
  while (hosts.sent_bytes(1) < kRows * kHalfBytes) two.exchange.carry(0, {0, 1}, 0, 1);
  one.exchange.await_all();
  std::fill(one.memory.begin(), one.memory.end(), 3.0F);  // what the second round brings
  one.exchange.carry(0, {0, kRows}, 1, 1);
  while (hosts.sent_bytes(0) < 2 * kRows * kHalfBytes) one.exchange.carry(0, {0, 1}, 0, 1);
  for (int look = 0; look < 100; ++look) two.exchange.carry(0, {0, 1}, 0, 1);
  EXPECT_TRUE(two.has_rows_before(kRows, 0, 1));
  two.exchange.end_round(0);
  std::jthread other([&] { one.exchange.end_round(1); });  // no product follows: it waits for all
  two.exchange.end_round(1);
  other.join();
  EXPECT_TRUE(two.has_rows_before(kRows, 0, 3));
  EXPECT_TRUE(one.exchange.result() && two.exchange.result());
}

// The first host has both rounds, and may not turn away before the second one has them too.
class EndOfPass : public testing::Test {
 protected:
  explicit EndOfPass(std::chrono::milliseconds patience = std::chrono::seconds(60))
      : hosts(kHosts, patience) {
    std::jthread other([&] { end_rounds(two); });
    end_rounds(one);
  }

  static void end_rounds(Host& host) {
    for (size_t round = 0; round < 2; ++round) {
      host.exchange.end_round(round);
      host.exchange.await_all();
    }
  }

  LoopbackHosts hosts;
  const Batch batch = prompt();
  Host one{hosts, 0, batch, 1};
  Host two{hosts, 1, batch, 2};
};

TEST_F(EndOfPass, comes_when_the_other_host_has_all_rows) {
  std::atomic<bool> has_left = false;
  std::jthread leaver([&] {
    one.exchange.end_pass();
    has_left = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(has_left);
  two.exchange.end_pass();
  leaver.join();
  EXPECT_TRUE(one.exchange.result() && two.exchange.result());
}

TEST_F(EndOfPass, is_not_waited_for_when_the_link_is_cut) {
  std::jthread leaver([&] { one.exchange.end_pass(); });
  hosts.cut();
  leaver.join();
  ASSERT_FALSE(one.exchange.result());
  EXPECT_EQ(one.exchange.result().error().message, "a host of the test is lost: the link is cut");
}

class SilentEndOfPass : public EndOfPass {
 protected:
  SilentEndOfPass() : EndOfPass(std::chrono::seconds(1)) {}
};

TEST_F(SilentEndOfPass, is_waited_for_no_longer_than_the_patience) {
  one.exchange.end_pass();
  ASSERT_FALSE(one.exchange.result());
  EXPECT_EQ(one.exchange.result().error().message,
            "a host of the test is lost: no byte has moved for 1000 ms");
}

TEST(RowExchange, small_batches_are_not_cut) {
  LoopbackHosts hosts(kHosts);
  Batch batch;
  batch.tokens.resize(kBlockRows);
  Host host(hosts, 0, batch, 1);
  EXPECT_FALSE(host.exchange.takes(0));
  host.exchange.carry(0, {0, kBlockRows}, 1, 1);
  EXPECT_EQ(hosts.sent_bytes(0), 0U);
  host.exchange.await(kBlockRows);
  host.exchange.await_all();
}

// The last step's rows the first host alone brings, all at once: not where it has computed them of
// rows that have not come.
TEST(RowExchange, what_is_computed_of_rows_that_have_not_come_is_not_sent) {
  std::vector<Plan> plans = {plan_of(0), plan_of(1)};
  for (Plan& plan : plans) {
    auto& last = std::get<FormStep>(plan.steps.back().work);
    last.rows = Rows::kExperts;
    last.routing.chosen_count = 1;
    if (plan.rank == 1) last.output.columns = 0;
  }
  const Batch batch = prompt();
  for (const bool come : {true, false}) {
    SCOPED_TRACE(come);
    LoopbackHosts hosts(kHosts, std::chrono::milliseconds(come ? 60'000 : 20));
    Host two(hosts, 1, batch, 2);
    if (come) two.exchange.end_round(0);
    while (come && hosts.sent_bytes(1) < kRows * kHalfBytes) two.exchange.carry(0, {0, 1}, 0, 1);
    std::vector<float> memory(kRows * kWidth);
    ArenaAddresses addresses;
    addresses[Arena::kExchange] = reinterpret_cast<uintptr_t>(memory.data());
    HostExchange one(hosts.group(0), {.of_host = {{0, 1}, {1, 2}}, .host = 0}, plans, kBlockRows);
    one.bind({addresses});
    ASSERT_TRUE(one.begin_pass(batch));
    one.exchange();
    one.rows().await_all();
    const size_t sent = hosts.sent_bytes(0);
    one.exchange();
    EXPECT_EQ(hosts.sent_bytes(0), sent + (come ? kRows * kHalfBytes : 0));
    const std::jthread other([&] {
      if (come) two.exchange.end_pass();
    });
    EXPECT_EQ(one.finish_pass().has_value(), come);
  }
}

constexpr size_t kManyHosts = 4;
constexpr size_t kManyRounds = 24;
constexpr size_t kWorkers = 3;
constexpr size_t kPlaceFloats = kRows * kWidth;

// Rounds in two places in turns. Some have a product of their rows behind them, and of some the
// rows, of experts, go all at once.
Plan long_plan(size_t rank) {
  Plan plan = plan_without_steps(rank, kManyHosts);
  for (size_t round = 0; round < kManyRounds; ++round) {
    FormStep forms = rows_at(round % 2 * kPlaceFloats * sizeof(float), rank, kManyHosts);
    if (round % 5 == 4) {
      forms.rows = Rows::kExperts;
      forms.routing.chosen_count = 1;
    }
    plan.steps.push_back({.work = forms, .meet = Meet::kAllRanks});
    if (round % 3 != 2) plan.steps.push_back({.work = MatmulStep(), .meet = Meet::kRank});
  }
  return plan;
}

std::vector<Plan> long_plans() {
  std::vector<Plan> plans;
  for (size_t rank = 0; rank < kManyHosts; ++rank) plans.push_back(long_plan(rank));
  return plans;
}

HostRanks one_rank_each(size_t host) {
  HostRanks ranks{.host = host};
  for (size_t rank = 0; rank < kManyHosts; ++rank) ranks.of_host.push_back({rank, rank + 1});
  return ranks;
}

// A host whose workers walk the long plan as a rank's do: a step's tasks have two rows, and one
// half of what the host brings in each.
class WalkingHost {
 public:
  WalkingHost(HostGroup& group, size_t host, const Batch& batch)
      : host_(host), exchange_(group, one_rank_each(host), long_plans(), kBlockRows) {
    ArenaAddresses addresses;
    addresses[Arena::kExchange] = reinterpret_cast<uintptr_t>(memory_.data());
    exchange_.bind({addresses});
    EXPECT_TRUE(exchange_.begin_pass(batch));
  }

  // Returns when the pass has ended.
  void walk() {
    {
      std::vector<std::jthread> workers;
      for (size_t worker = 0; worker < kWorkers; ++worker) {
        workers.emplace_back([this, worker] { walk(worker); });
      }
    }
    EXPECT_TRUE(exchange_.finish_pass());
  }

 private:
  void walk(size_t worker) {
    size_t round = 0;
    for (const Step& step : exchange_.plans()[host_].steps) {
      const bool brings = step.meet == Meet::kAllRanks;
      for (size_t task = tasks_++; task < kRows; task = tasks_++) {
        const Range rows = {task / 2 * 2, task / 2 * 2 + 2};
        brings ? write(round, rows, task % 2) : read(round - 1, rows);
      }
      exchange_.rows().await_all();
      met_.arrive_and_wait();
      if (worker == 0) tasks_ = 0;
      if (worker == 0 && brings) exchange_.exchange();
      met_.arrive_and_wait();
      if (brings) ++round;
    }
  }

  float& at(size_t round, size_t row, size_t column) {
    return memory_[round % 2 * kPlaceFloats + row * kWidth + column];
  }
  static float value(size_t round, size_t row) {
    return static_cast<float>(round * kRows + row + 1);
  }

  // Nothing is told of some rounds.
  void write(size_t round, Range rows, size_t half) {
    const size_t columns = kWidth / kManyHosts / 2;
    const size_t first = (2 * host_ + half) * columns;
    for (size_t row = rows.begin; row < rows.end; ++row) {
      for (size_t column = 0; column < columns; ++column) {
        at(round, row, first + column) = value(round, row);
      }
    }
    if (round % 4 != 3) exchange_.rows().carry(0, rows, 1, 2);
  }
  void read(size_t round, Range rows) {
    exchange_.rows().await(rows.end);
    for (size_t row = rows.begin; row < rows.end; ++row) {
      for (size_t column = 0; column < kWidth; ++column) {
        ASSERT_EQ(at(round, row, column), value(round, row))
            << "host " << host_ << ", round " << round << ", row " << row;
      }
    }
  }

  const size_t host_;
  HostExchange exchange_;
  std::vector<float> memory_ = std::vector<float>(2 * kPlaceFloats);
  std::atomic<size_t> tasks_ = 0;
  std::barrier<> met_{kWorkers};
};

// A host leaves as soon as its own pass has ended, and then helps no other.
void walk_all(LoopbackHosts& hosts) {
  const Batch batch = prompt();
  std::vector<std::jthread> threads;
  for (size_t host = 0; host < kManyHosts; ++host) {
    threads.emplace_back([&, host] { WalkingHost(hosts.group(host), host, batch).walk(); });
  }
}

TEST(RowExchange, workers_of_several_hosts_read_what_all_have_written) {
  for (int pass = 0; pass < 20; ++pass) {
    LoopbackHosts hosts(kManyHosts);
    walk_all(hosts);
  }
}

TEST(RowExchange, they_do_so_over_every_transport) {
  for (const HostTransport& transport : host_transports()) {
    // MPI's has processes of its own (tests/server).
    if (transport.joins_gpus || transport.name == "mpi" || !transport.obstacle().empty()) continue;
    SCOPED_TRACE(transport.name);
    for (const bool over_tcp : {true, false}) {
      if (over_tcp) ::setenv("UCX_TLS", "tcp,self", 1);  // NOLINT(concurrency-mt-unsafe)
      LoopbackHosts hosts(kManyHosts, transport);
      ::unsetenv("UCX_TLS");  // NOLINT(concurrency-mt-unsafe)
      for (int pass = 0; pass < 20; ++pass) walk_all(hosts);
    }
  }
}

}  // namespace
}  // namespace lockstep
