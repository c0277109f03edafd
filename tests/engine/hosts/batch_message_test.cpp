#include "engine/hosts/batch_message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "tests/tried_cases.h"

namespace lockstep {

static bool operator==(const BatchToken& a, const BatchToken& b) {
  return a.token == b.token && a.position == b.position && a.sequence == b.sequence &&
         a.segment == b.segment;
}
static bool operator==(const Batch::StateCopy& a, const Batch::StateCopy& b) {
  return a.from == b.from && a.to == b.to;
}
static bool operator==(const Batch::Checkpoint& a, const Batch::Checkpoint& b) {
  return a.token == b.token && a.slot == b.slot;
}

namespace {

using Bytes = std::vector<std::byte>;

constexpr BatchLimits kLimits = {.vocabulary_size = 1000,
                                 .batch_tokens = 64,
                                 .logit_rows = 16,
                                 .sequence_count = 12,
                                 .page_count = 500,
                                 .group_count = 2,
                                 .state_slots = 20,
                                 .context_tokens = 1000};

// A batch that the limits allow, and its tables.
struct RandomBatch {
  explicit RandomBatch(uint64_t seed, BatchLimits given = kLimits) : limits(given), random(seed) {
    batch.group_count = limits.group_count;
    const size_t sequences = below(limits.sequence_count) + 1;
    for (size_t sequence = 0; sequence < sequences; ++sequence) add_sequence(sequence);
    batch.generated_tokens = below(batch.tokens.size() + 1);
    std::vector<uint32_t> slots(limits.state_slots);
    std::iota(slots.begin(), slots.end(), 0U);
    std::ranges::shuffle(slots, random);
    if (limits.state_slots > 0) {
      batch.state_slots.assign(slots.begin(), slots.begin() + static_cast<ptrdiff_t>(sequences));
      for (size_t copy = below(4); copy > 0; --copy) {
        const size_t from = below(slots.size() - 1);
        batch.state_copies.push_back({slots[from], slots[from + 1]});
      }
      for (uint32_t token = 0; token < batch.tokens.size(); ++token) {
        const size_t next = sequences + batch.checkpoints.size();
        if (next == slots.size() || below(4) > 0) continue;
        batch.checkpoints.push_back({.token = token, .slot = slots[next]});
      }
    }
    for (uint32_t token = 0; token < batch.tokens.size(); ++token) {
      if (batch.logit_tokens.size() < limits.logit_rows && below(2) == 0) {
        batch.logit_tokens.push_back(token);
      }
    }
    for (size_t page = below(9); page > 0; --page) batch.cleared_pages.push_back(some_page());
    size_t next = 0;
    for (const size_t length : lengths) {
      batch.page_tables.emplace_back(pages.data() + next, length);
      next += length;
    }
  }

  size_t below(size_t bound) { return random() % bound; }
  uint32_t some_page() { return static_cast<uint32_t>(below(limits.page_count)); }

  void add_sequence(size_t sequence) {
    const size_t left = limits.batch_tokens - batch.tokens.size();
    // The first has a token at least; others may have none in this pass.
    const size_t count = std::min(left, below(8) + (sequence == 0 ? 1 : 0));
    const size_t first = below(limits.context_tokens - count + 1);
    for (size_t index = 0; index < count; ++index) {
      batch.tokens.push_back({.token = static_cast<TokenId>(below(limits.vocabulary_size)),
                              .position = static_cast<uint32_t>(first + index),
                              .sequence = static_cast<uint32_t>(sequence),
                              .segment = static_cast<uint32_t>(below(2))});
    }
    const size_t needed = (first + count + 63) / 64;
    const size_t most = (limits.context_tokens + 63) / 64;
    const size_t length = needed + below(most - needed + 1);
    for (size_t group = 0; group < limits.group_count; ++group) {
      lengths.push_back(length);
      for (size_t page = 0; page < length; ++page) pages.push_back(some_page());
    }
  }

  BatchLimits limits;
  std::mt19937_64 random;
  std::vector<size_t> lengths;  // of tables
  std::vector<uint32_t> pages;
  Batch batch;
};

void expect_same(const Batch& read, const Batch& written) {
  EXPECT_TRUE(read.tokens == written.tokens);
  EXPECT_EQ(read.generated_tokens, written.generated_tokens);
  EXPECT_EQ(read.group_count, written.group_count);
  ASSERT_EQ(read.page_tables.size(), written.page_tables.size());
  for (size_t table = 0; table < read.page_tables.size(); ++table) {
    EXPECT_TRUE(std::ranges::equal(read.page_tables[table], written.page_tables[table]));
  }
  EXPECT_EQ(read.state_slots, written.state_slots);
  EXPECT_TRUE(read.state_copies == written.state_copies);
  EXPECT_TRUE(read.checkpoints == written.checkpoints);
  EXPECT_EQ(read.logit_tokens, written.logit_tokens);
  EXPECT_EQ(read.cleared_pages, written.cleared_pages);
  EXPECT_EQ(read.given_rows, written.given_rows);
  EXPECT_TRUE(read.draws.empty());
}

TEST(BatchMessage, random_batches_come_back) {
  BatchLimits stateless = kLimits;
  stateless.state_slots = 0;
  stateless.group_count = 1;
  for (const BatchLimits& limits : {kLimits, stateless}) {
    ReceivedBatch received(limits);
    Bytes bytes;
    for (uint64_t seed = 0; seed < tried_cases(2000); ++seed) {
      SCOPED_TRACE(seed);
      RandomBatch made(seed, limits);
      made.batch.draws.resize(made.batch.logit_tokens.size());
      write_pass(made.batch, bytes);
      const auto command = read_command(bytes);
      ASSERT_TRUE(command) << command.error().message;
      ASSERT_EQ(command->kind, CommandKind::kPass);
      const auto read = received.read(command->batch);
      ASSERT_TRUE(read) << read.error().message;
      expect_same(received.batch(), made.batch);
    }
  }
}

// States of a batch are not looked up where the model has none.
TEST(BatchMessage, slots_are_left_out_where_there_are_no_states) {
  RandomBatch made(1);
  made.batch.checkpoints.clear();
  Bytes bytes;
  write_batch(made.batch, bytes);
  BatchLimits limits = kLimits;
  limits.state_slots = 0;
  ReceivedBatch received(limits);
  ASSERT_TRUE(received.read(bytes));
  EXPECT_TRUE(received.batch().state_slots.empty());
  EXPECT_TRUE(received.batch().state_copies.empty());
  EXPECT_TRUE(received.batch().checkpoints.empty());
}

struct Fault {
  const char* name;
  std::function<void(RandomBatch&)> make;
  std::string message;  // a part
};

std::vector<Fault> token_faults() {
  return {
      {"no tokens", [](auto& b) { b.batch.tokens.clear(); }, "0 tokens in a batch"},
      {"too many tokens", [](auto& b) { b.batch.tokens.resize(65); }, "65 tokens in a batch"},
      {"too many generated", [](auto& b) { b.batch.generated_tokens = 65; }, "65 generated"},
      {"token beyond", [](auto& b) { b.batch.tokens[0].token = 1000; }, "token 1000 of 1000"},
      {"token below", [](auto& b) { b.batch.tokens[0].token = -1; }, "token -1 of 1000"},
      {"sequence", [](auto& b) { b.batch.tokens.back().sequence = 12; }, "of sequence 12"},
      {"segment", [](auto& b) { b.batch.tokens[0].segment = 2; }, "segment 2"},
      {"position beyond context", [](auto& b) { b.batch.tokens.assign(1, {.position = 1000}); },
       "a token is at 1000"},
      {"position beyond pages",
       [](auto& b) {
         b.batch.tokens.assign(1, {.position = 64});
         for (auto& table : b.batch.page_tables) table = table.first(1);
       },
       "a token is at 64, its sequence has pages for 64"},
      {"order within a sequence", [](auto& b) { b.batch.tokens.assign(2, {.position = 0}); },
       "out of order"},
      {"a sequence in two parts",
       [](auto& b) {
         b.batch.tokens = {{.sequence = 0}, {.sequence = 1}, {.position = 1, .sequence = 0}};
       },
       "tokens of sequence 0 are out of order"},
      {"rows of logits", [](auto& b) { b.batch.logit_tokens.resize(17); }, "17 rows of logits"},
      {"logits beyond",
       [](auto& b) { b.batch.logit_tokens = {static_cast<uint32_t>(b.batch.tokens.size())}; },
       "logits of token"},
      {"logits twice",
       [](auto& b) {
         b.batch.logit_tokens = {0, 0};
       },
       "out of order"},
  };
}

std::vector<Fault> memory_faults() {
  return {
      {"page", [](auto& b) { b.pages[0] = 500; }, "page 500 of 500"},
      {"cleared page", [](auto& b) { b.batch.cleared_pages = {500}; }, "page 500 of 500"},
      {"groups", [](auto& b) { b.batch.group_count = 1; }, "1 groups of page tables"},
      {"sequences", [](auto& b) { b.batch.page_tables.resize(26); }, "13 sequences"},
      {"no sequences", [](auto& b) { b.batch.page_tables.clear(); }, "0 sequences"},
      {"long table",
       [](auto& b) {
         b.pages.assign(17, 0);
         b.batch.page_tables.assign(2, b.pages);
       },
       "a sequence has 17 pages, the longest has 16"},
      {"slots missing", [](auto& b) { b.batch.state_slots.pop_back(); }, "states"},
      {"slot beyond", [](auto& b) { b.batch.state_slots[0] = 20; }, "slot 20 of 20"},
      {"slot twice", [](auto& b) { b.batch.state_slots[1] = b.batch.state_slots[0]; },
       "for two sequences' states"},
      {"copy from",
       [](auto& b) {
         b.batch.state_copies = {{20, 0}};
       },
       "from slot 20 to 0"},
      {"copy to",
       [](auto& b) {
         b.batch.state_copies = {{0, 20}};
       },
       "from slot 0 to 20"},
      {"copy to itself",
       [](auto& b) {
         b.batch.state_copies = {{3, 3}};
       },
       "from slot 3 to 3"},
      {"too many kept", [](auto& b) { b.batch.checkpoints.resize(21); }, "21 states are kept"},
      {"kept behind no token",
       [](auto& b) {
         const auto count = static_cast<uint32_t>(b.batch.tokens.size());
         b.batch.checkpoints = {{.token = count, .slot = 19}};
       },
       "is kept behind token"},
      {"kept out of order",
       [](auto& b) {
         b.batch.state_slots = {0, 1, 2};
         b.batch.checkpoints = {{.token = 0, .slot = 18}, {.token = 0, .slot = 19}};
       },
       "is kept behind token 0"},
      {"kept in a slot beyond", [](auto& b) { b.batch.checkpoints = {{.token = 0, .slot = 20}}; },
       "in slot 20 of 20"},
      {"kept in a sequence's slot",
       [](auto& b) { b.batch.checkpoints = {{.token = 0, .slot = b.batch.state_slots[1]}}; },
       "which is another's"},
      {"two kept in one slot",
       [](auto& b) {
         b.batch.state_slots = {0, 1, 2};
         b.batch.checkpoints = {{.token = 0, .slot = 19}, {.token = 1, .slot = 19}};
       },
       "in slot 19, which is another's"},
  };
}

TEST(BatchMessage, what_a_pass_cannot_compute_is_refused) {
  std::vector<Fault> faults = token_faults();
  std::ranges::move(memory_faults(), std::back_inserter(faults));
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.name);
    uint64_t seed = 0;
    while (RandomBatch(seed).batch.sequence_count() != 3) ++seed;
    RandomBatch made(seed);
    made.batch.generated_tokens = 0;
    fault.make(made);
    Bytes bytes;
    write_batch(made.batch, bytes);
    ReceivedBatch received(kLimits);
    const auto read = received.read(bytes);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().kind, ErrorKind::kInvalidInput);
    EXPECT_TRUE(read.error().message.contains(fault.message)) << read.error().message;
    EXPECT_TRUE(received.batch().tokens.empty());
    EXPECT_TRUE(received.batch().page_tables.empty());
  }
}

TEST(BatchMessage, what_is_cut_short_or_has_more_is_refused) {
  const RandomBatch made(5);
  Bytes bytes;
  write_batch(made.batch, bytes);
  ReceivedBatch received(kLimits);
  for (size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_FALSE(received.read(std::span(bytes).first(length))) << length;
  }
  ASSERT_TRUE(received.read(bytes));
  bytes.push_back(std::byte{0});
  ASSERT_FALSE(received.read(bytes));
}

TEST(BatchMessage, given_rows_come_back_and_have_one_for_each_token) {
  BatchLimits limits = kLimits;
  limits.given_columns = 5;
  RandomBatch made(3);
  const size_t count = made.batch.tokens.size() * limits.given_columns;
  for (size_t index = 0; index < count; ++index) {
    made.batch.given_rows.push_back(0.25F * static_cast<float>(index));
  }
  Bytes bytes;
  ReceivedBatch received(limits);
  write_batch(made.batch, bytes);
  ASSERT_TRUE(received.read(bytes));
  expect_same(received.batch(), made.batch);
  ASSERT_FALSE(ReceivedBatch(kLimits).read(bytes));
  made.batch.given_rows.pop_back();
  write_batch(made.batch, bytes);
  ASSERT_FALSE(received.read(bytes));
  EXPECT_TRUE(received.batch().given_rows.empty());
}

// By it hosts know how long a command gets before the first one.
TEST(BatchMessage, the_longest_command_is_that_of_a_full_batch) {
  RandomBatch made(1);
  Batch& batch = made.batch;
  batch.tokens.resize(kLimits.batch_tokens);
  const std::vector<uint32_t> table(16);  // for 1000 tokens
  batch.page_tables.assign(kLimits.sequence_count * kLimits.group_count, table);
  batch.state_slots.resize(kLimits.sequence_count);
  batch.state_copies.resize(4 * kLimits.state_slots);
  batch.checkpoints.resize(kLimits.state_slots);
  batch.logit_tokens.resize(kLimits.logit_rows);
  batch.cleared_pages.resize(kLimits.page_count);
  Bytes bytes;
  write_pass(batch, bytes);
  EXPECT_EQ(command_bytes_most(kLimits), bytes.size());
  for (uint64_t seed = 0; seed < 100; ++seed) {
    write_pass(RandomBatch(seed).batch, bytes);
    ASSERT_LE(bytes.size(), command_bytes_most(kLimits));
  }
}

TEST(BatchMessage, commands_come_back) {
  Bytes bytes;
  write_hidden_rows(77, 12, HiddenForm::kResidual, bytes);
  const auto row = read_command(bytes);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->kind, CommandKind::kHiddenRows);
  EXPECT_EQ(row->first_token, 77U);
  EXPECT_EQ(row->token_count, 12U);
  EXPECT_EQ(row->form, HiddenForm::kResidual);
  Bytes other = bytes;
  other[1 + 2 * sizeof(uint32_t)] = std::byte{2};  // a form that there is not
  EXPECT_FALSE(read_command(other));
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(read_command(bytes));
  bytes.resize(bytes.size() - 2);
  EXPECT_FALSE(read_command(bytes));
  write_kept_rows(78, bytes);
  const auto kept = read_command(bytes);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->kind, CommandKind::kKeptRows);
  EXPECT_EQ(kept->first_token, 78U);
  for (const size_t size : {bytes.size() - 1, bytes.size() + 1}) {
    other = bytes;
    other.resize(size);
    EXPECT_FALSE(read_command(other)) << size;
  }
  for (const int kind : {0, 4, 255}) {
    bytes.assign(1, static_cast<std::byte>(kind));
    EXPECT_FALSE(read_command(bytes)) << kind;
  }
  EXPECT_FALSE(read_command({}));
}

}  // namespace
}  // namespace lockstep
