// A batch whose numbers the input chooses, sound ones more often than others, and then any bytes,
// as what the leader sends. What is taken has all that a pass relies on: nothing is looked up
// outside of what is there.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "engine/base/check.h"
#include "engine/hosts/batch_message.h"
#include "engine/kernels/attention.h"

namespace lockstep {
namespace {

constexpr BatchLimits kLimits = {.vocabulary_size = 100,
                                 .batch_tokens = 16,
                                 .logit_rows = 4,
                                 .sequence_count = 5,
                                 .page_count = 30,
                                 .group_count = 2,
                                 .state_slots = 8,
                                 .given_columns = 3,
                                 .context_tokens = 300};

void check_tokens(const Batch& batch) {
  CHECK(!batch.tokens.empty() && batch.tokens.size() <= kLimits.batch_tokens, "{} tokens",
        batch.tokens.size());
  CHECK(batch.generated_tokens <= batch.tokens.size(), "{} generated", batch.generated_tokens);
  std::set<uint32_t> ended;
  for (size_t index = 0; index < batch.tokens.size(); ++index) {
    const BatchToken& token = batch.tokens[index];
    CHECK(token.token >= 0 && token.token < 100, "token {}", token.token);
    CHECK(token.position < kLimits.context_tokens, "position {}", token.position);
    CHECK(token.sequence < batch.sequence_count(), "sequence {}", token.sequence);
    CHECK(token.segment < 2, "segment {}", token.segment);
    for (size_t group = 0; group < batch.group_count; ++group) {
      const auto table = batch.pages(token.sequence, group);
      CHECK(token.position / kPageTokens < table.size(), "page {} of {}",
            token.position / kPageTokens, table.size());
    }
    CHECK(!ended.contains(token.sequence), "sequence {} comes again", token.sequence);
    if (index + 1 == batch.tokens.size()) break;
    const BatchToken& next = batch.tokens[index + 1];
    if (next.sequence != token.sequence) ended.insert(token.sequence);
    CHECK(next.sequence != token.sequence || next.position == token.position + 1, "order");
  }
}

void check_memory(const Batch& batch) {
  CHECK(batch.group_count == kLimits.group_count, "{} groups", batch.group_count);
  CHECK(batch.page_tables.size() == batch.sequence_count() * batch.group_count, "{} tables",
        batch.page_tables.size());
  CHECK(batch.sequence_count() <= kLimits.sequence_count, "{} sequences", batch.sequence_count());
  const auto is_page = [](uint32_t page) { return page < kLimits.page_count; };
  for (size_t table = 0; table < batch.page_tables.size(); ++table) {
    const auto pages = batch.page_tables[table];
    CHECK(std::ranges::all_of(pages, is_page), "a page of table {}", table);
    CHECK(pages.size() == batch.page_tables[table / 2 * 2].size(), "{} pages", pages.size());
  }
  CHECK(std::ranges::all_of(batch.cleared_pages, is_page), "a page that is cleared");
  CHECK(batch.state_slots.size() == batch.sequence_count(), "{} slots", batch.state_slots.size());
  const std::set<uint32_t> slots(batch.state_slots.begin(), batch.state_slots.end());
  CHECK(slots.size() == batch.state_slots.size(), "a slot of two sequences");
  CHECK(slots.empty() || *slots.rbegin() < kLimits.state_slots, "slot {}", *slots.rbegin());
  for (const Batch::StateCopy& copy : batch.state_copies) {
    CHECK(copy.from < 8 && copy.to < 8 && copy.from != copy.to, "{} to {}", copy.from, copy.to);
  }
  std::set<uint32_t> taken = slots;
  for (const Batch::Checkpoint& kept : batch.checkpoints) {
    CHECK(kept.slot < kLimits.state_slots && taken.insert(kept.slot).second, "slot {}", kept.slot);
    CHECK(kept.token < batch.tokens.size(), "a state behind token {}", kept.token);
    CHECK(&kept == batch.checkpoints.data() || kept.token > (&kept - 1)->token, "out of order");
  }
  CHECK(batch.given_rows.size() == 3 * batch.tokens.size(), "{} given floats",
        batch.given_rows.size());
  CHECK(batch.logit_tokens.size() <= kLimits.logit_rows, "{} rows", batch.logit_tokens.size());
  CHECK(std::ranges::is_sorted(batch.logit_tokens), "rows out of order");
  for (const uint32_t token : batch.logit_tokens) {
    CHECK(token < batch.tokens.size(), "logits of token {}", token);
  }
}

void read(ReceivedBatch& received, std::span<const std::byte> bytes) {
  if (!received.read(bytes)) {
    CHECK(received.batch().tokens.empty(), "what was refused is there");
    return;
  }
  check_tokens(received.batch());
  check_memory(received.batch());
  std::vector<std::byte> again;
  write_batch(received.batch(), again);
  CHECK(std::ranges::equal(again, bytes), "it is written otherwise");
}

// Few numbers are beyond what the limits allow.
std::vector<std::byte> write(FuzzedDataProvider& input) {
  const auto below = [&](uint32_t bound) {
    return input.ConsumeIntegralInRange<uint32_t>(0, input.ConsumeBool() ? bound - 1 : bound);
  };
  Batch batch;
  batch.group_count = 2;
  std::vector<uint32_t> pages(12);
  for (uint32_t& page : pages) page = below(30);
  const uint32_t sequences = below(5) + 1;
  for (uint32_t sequence = 0; sequence < sequences; ++sequence) {
    const auto length = input.ConsumeIntegralInRange<size_t>(0, 6);
    batch.page_tables.push_back(std::span(pages).first(length));
    batch.page_tables.push_back(std::span(pages).last(length));
    batch.state_slots.push_back(input.ConsumeBool() ? sequence : below(8));
    uint32_t position = below(300);
    for (uint32_t count = below(5); count > 0; --count) {
      batch.tokens.push_back({.token = static_cast<TokenId>(below(100)),
                              .position = position++,
                              .sequence = input.ConsumeBool() ? sequence : below(5),
                              .segment = below(2)});
    }
  }
  batch.generated_tokens = below(17);
  const size_t floats = 3 * batch.tokens.size();
  const size_t missing = input.ConsumeBool() ? 0 : below(2);
  batch.given_rows.resize(floats - std::min(floats, missing), 0.5F);
  for (uint32_t count = below(3); count > 0; --count) {
    batch.state_copies.push_back({below(8), below(8)});
    batch.checkpoints.push_back({.token = below(16), .slot = below(8)});
    batch.logit_tokens.push_back(below(16));
    batch.cleared_pages.push_back(below(30));
  }
  std::vector<std::byte> bytes;
  write_batch(batch, bytes);
  return bytes;
}

void read_any(FuzzedDataProvider& input) {
  static ReceivedBatch received(kLimits);  // as it is left by what came before
  std::vector<std::byte> bytes = write(input);
  read(received, bytes);
  while (input.remaining_bytes() > 0) {
    const auto place = input.ConsumeIntegralInRange<size_t>(0, bytes.size());
    if (place == bytes.size()) break;
    bytes[place] = static_cast<std::byte>(input.ConsumeIntegral<uint8_t>());
    read(received, bytes);
  }
  const auto rest = input.ConsumeRemainingBytes<uint8_t>();
  read(received, std::as_bytes(std::span(rest)));
  if (const auto command = read_command(std::as_bytes(std::span(rest)));
      command && command->kind == CommandKind::kPass) {
    read(received, command->batch);
  }
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  lockstep::read_any(input);
  return 0;
}
