// Rows go to other hosts before their step has ended, and are awaited block by block.
#include "engine/runtime/hosts/row_exchange.h"

#include <gtest/gtest.h>

#include <chrono>
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

// A step whose rows all hosts read, then a product of them, then the same again without one.
Plan plan_of(size_t rank) {
  const size_t stride_bytes = kWidth * sizeof(float);
  FormStep forms;
  forms.output.forms.columns = kWidth;
  forms.output.forms[ActivationForm::kF32] = {
      .rows = {Arena::kExchange, 0}, .stride_bytes = stride_bytes, .prompted = true};
  forms.output.first_column = rank * kWidth / kHosts;
  forms.output.columns = kWidth / kHosts;
  forms.output.gather = true;
  Plan plan;
  plan.rank = rank;
  plan.rank_count = kHosts;
  plan.batch_tokens = kRows;
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
    EXPECT_EQ(one.finish_pass().has_value(), come);
  }
}

}  // namespace
}  // namespace lockstep
