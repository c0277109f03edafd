#include "engine/hosts/batch_message.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "engine/base/checked_math.h"
#include "engine/kernels/attention.h"

namespace lockstep {

// The counts that stand first, of everything that follows. The numbers of each kind follow
// one after another, 4 bytes each, in the order below: tokens, the length of each sequence's
// tables, the tables themselves, slots, copies, checkpoints, logit tokens, cleared pages, and the
// rows that are given with tokens.
struct ReceivedBatch::Counts {
  uint32_t tokens = 0;
  uint32_t generated = 0;
  uint32_t sequences = 0;
  uint32_t groups = 0;
  uint32_t slots = 0;
  uint32_t copies = 0;
  uint32_t checkpoints = 0;
  uint32_t logits = 0;
  uint32_t cleared = 0;
};

namespace {

constexpr uint32_t kSegments = 2;
constexpr size_t kStateCopiesMost = 4;  // of a pass, for each slot

template <typename Value>
void append(std::span<const Value> values, std::vector<std::byte>& to) {
  static_assert(std::has_unique_object_representations_v<Value>);
  const auto bytes = std::as_bytes(values);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void append(std::span<const float> values, std::vector<std::byte>& to) {
  const auto bytes = std::as_bytes(values);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// Takes numbers from the bytes; each take() says whether they were all there.
class Numbers {
 public:
  explicit Numbers(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename Value>
  bool take(Value& value) {
    return take(std::span(&value, 1));
  }
  // The memory is taken when the bytes are known to be there.
  template <typename Value>
  bool take(size_t count, std::vector<Value>& values) {
    if (count > rest_.size() / sizeof(Value)) return false;
    values.resize(count);
    return take(std::span(values));
  }
  bool is_empty() const { return rest_.empty(); }

 private:
  template <typename Value>
  bool take(std::span<Value> values) {
    static_assert(std::has_unique_object_representations_v<Value> || std::is_same_v<Value, float>);
    if (values.size_bytes() > rest_.size()) return false;
    if (!values.empty()) std::memcpy(values.data(), rest_.data(), values.size_bytes());
    rest_ = rest_.subspan(values.size_bytes());
    return true;
  }

  std::span<const std::byte> rest_;
};

constexpr uint32_t kLastForm = static_cast<uint32_t>(HiddenForm::kResidual);

std::unexpected<Error> cut_short(size_t bytes) {
  return invalid_input("a batch of {} bytes is not all there", bytes);
}

}  // namespace

void write_pass(const Batch& batch, std::vector<std::byte>& to) {
  to.assign(1, static_cast<std::byte>(CommandKind::kPass));
  write_batch(batch, to);
}

void write_hidden_rows(uint32_t first_token, uint32_t count, HiddenForm form,
                       std::vector<std::byte>& to) {
  to.assign(1, static_cast<std::byte>(CommandKind::kHiddenRows));
  const uint32_t numbers[] = {first_token, count, static_cast<uint32_t>(form)};
  append(std::span<const uint32_t>(numbers), to);
}

void write_kept_rows(uint32_t token, std::vector<std::byte>& to) {
  to.assign(1, static_cast<std::byte>(CommandKind::kKeptRows));
  append(std::span<const uint32_t>(&token, 1), to);
}

Result<Command> read_command(std::span<const std::byte> bytes) {
  if (bytes.empty()) return invalid_input("a command has no bytes");
  Command command;
  command.kind = static_cast<CommandKind>(bytes.front());
  const auto rest = bytes.subspan(1);
  uint32_t numbers[3] = {};
  switch (command.kind) {
    case CommandKind::kPass:
      command.batch = rest;
      return command;
    case CommandKind::kHiddenRows:
      if (rest.size() != sizeof(numbers)) break;
      std::memcpy(numbers, rest.data(), sizeof(numbers));
      if (numbers[2] > kLastForm) break;
      command.first_token = numbers[0];
      command.token_count = numbers[1];
      command.form = static_cast<HiddenForm>(numbers[2]);
      return command;
    case CommandKind::kKeptRows:
      if (rest.size() != sizeof(command.first_token)) break;
      std::memcpy(&command.first_token, rest.data(), sizeof(command.first_token));
      return command;
  }
  return invalid_input("a command of kind {} with {} bytes is none", static_cast<int>(bytes[0]),
                       bytes.size());
}

void write_batch(const Batch& batch, std::vector<std::byte>& to) {
  const uint32_t counts[] = {
      static_cast<uint32_t>(batch.tokens.size()),
      static_cast<uint32_t>(batch.generated_tokens),
      static_cast<uint32_t>(batch.sequence_count()),
      static_cast<uint32_t>(batch.group_count),
      static_cast<uint32_t>(batch.state_slots.size()),
      static_cast<uint32_t>(batch.state_copies.size()),
      static_cast<uint32_t>(batch.checkpoints.size()),
      static_cast<uint32_t>(batch.logit_tokens.size()),
      static_cast<uint32_t>(batch.cleared_pages.size()),
  };
  append(std::span<const uint32_t>(counts), to);
  append(std::span<const BatchToken>(batch.tokens), to);
  for (size_t sequence = 0; sequence < batch.sequence_count(); ++sequence) {
    const auto length = static_cast<uint32_t>(batch.pages(sequence, 0).size());
    append(std::span<const uint32_t>(&length, 1), to);
  }
  for (const std::span<const uint32_t> table : batch.page_tables) append(table, to);
  append(std::span<const uint32_t>(batch.state_slots), to);
  append(std::span<const Batch::StateCopy>(batch.state_copies), to);
  append(std::span<const Batch::Checkpoint>(batch.checkpoints), to);
  append(std::span<const uint32_t>(batch.logit_tokens), to);
  append(std::span<const uint32_t>(batch.cleared_pages), to);
  append(std::span<const float>(batch.given_rows), to);
}

size_t command_bytes_most(const BatchLimits& limits) {
  const size_t pages = divide_up(limits.context_tokens, kPageTokens) * limits.group_count;
  const size_t words = limits.sequence_count * (1 + pages) + limits.sequence_count +
                       (kStateCopiesMost + 1) * limits.state_slots * 2 + limits.logit_rows +
                       limits.page_count;
  const size_t token_bytes = sizeof(BatchToken) + limits.given_columns * sizeof(float);
  return 1 + sizeof(ReceivedBatch::Counts) + limits.batch_tokens * token_bytes +
         words * sizeof(uint32_t);
}

Result<void> ReceivedBatch::read(std::span<const std::byte> bytes) {
  batch_.clear();
  batch_.group_count = limits_.group_count;
  auto filled = fill(bytes);
  if (filled) filled = check_tokens();
  if (filled) filled = check_logits();
  if (filled) filled = check_states();
  if (!filled) batch_.clear();
  return filled;
}

Result<void> ReceivedBatch::fill(std::span<const std::byte> bytes) {
  Numbers numbers(bytes);
  Counts counts;
  if (!numbers.take(counts)) return cut_short(bytes.size());
  if (auto checked = check_counts(counts); !checked) return checked;
  if (!numbers.take(counts.tokens, batch_.tokens) || !numbers.take(counts.sequences, lengths_)) {
    return cut_short(bytes.size());
  }
  const size_t most = divide_up(limits_.context_tokens, kPageTokens);
  size_t pages = 0;
  for (const uint32_t length : lengths_) {
    if (length > most) {
      return invalid_input("a sequence has {} pages, the longest has {}", length, most);
    }
    pages += length * limits_.group_count;
  }
  if (!numbers.take(pages, pages_) || !numbers.take(counts.slots, batch_.state_slots) ||
      !numbers.take(counts.copies, batch_.state_copies) ||
      !numbers.take(counts.checkpoints, batch_.checkpoints) ||
      !numbers.take(counts.logits, batch_.logit_tokens) ||
      !numbers.take(counts.cleared, batch_.cleared_pages) ||
      !numbers.take(counts.tokens * limits_.given_columns, batch_.given_rows)) {
    return cut_short(bytes.size());
  }
  if (!numbers.is_empty()) return invalid_input("a batch has bytes behind its end");
  batch_.generated_tokens = counts.generated;
  std::span<const uint32_t> rest = pages_;
  for (const uint32_t length : lengths_) {
    for (size_t group = 0; group < limits_.group_count; ++group) {
      batch_.page_tables.push_back(rest.first(length));
      rest = rest.subspan(length);
    }
  }
  for (const std::vector<uint32_t>* const list : {&pages_, &batch_.cleared_pages}) {
    for (const uint32_t page : *list) {
      if (page < limits_.page_count) continue;
      return invalid_input("page {} of {} in a batch", page, limits_.page_count);
    }
  }
  return {};
}

Result<void> ReceivedBatch::check_counts(const Counts& counts) const {
  if (counts.tokens == 0 || counts.tokens > limits_.batch_tokens) {
    return invalid_input("{} tokens in a batch of at most {}", counts.tokens, limits_.batch_tokens);
  }
  if (counts.generated > counts.tokens) {
    return invalid_input("{} generated tokens of {}", counts.generated, counts.tokens);
  }
  if (counts.groups != limits_.group_count) {
    return invalid_input("{} groups of page tables, the plan has {}", counts.groups,
                         limits_.group_count);
  }
  if (counts.sequences == 0 || counts.sequences > limits_.sequence_count) {
    return invalid_input("{} sequences in a batch of at most {}", counts.sequences,
                         limits_.sequence_count);
  }
  if (counts.logits > limits_.logit_rows) {
    return invalid_input("{} rows of logits of at most {}", counts.logits, limits_.logit_rows);
  }
  if (counts.cleared > limits_.page_count) {
    return invalid_input("{} pages are cleared of {}", counts.cleared, limits_.page_count);
  }
  // A pass copies a slot a few times at most.
  if (counts.copies > kStateCopiesMost * limits_.state_slots) {
    return invalid_input("{} copies of states among {} slots", counts.copies, limits_.state_slots);
  }
  if (counts.checkpoints > limits_.state_slots) {
    return invalid_input("{} states are kept in {} slots", counts.checkpoints, limits_.state_slots);
  }
  return {};
}

// Each sequence has its tokens together, in their order, and pages for all of them.
Result<void> ReceivedBatch::check_tokens() {
  seen_.assign(lengths_.size(), false);
  for (size_t index = 0; index < batch_.tokens.size(); ++index) {
    const BatchToken& token = batch_.tokens[index];
    if (token.token < 0 || static_cast<size_t>(token.token) >= limits_.vocabulary_size) {
      return invalid_input("token {} of {} in a batch", token.token, limits_.vocabulary_size);
    }
    if (token.sequence >= lengths_.size() || token.segment >= kSegments) {
      return invalid_input("a token is of sequence {} of {}, segment {}", token.sequence,
                           lengths_.size(), token.segment);
    }
    const size_t paged = size_t{lengths_[token.sequence]} * kPageTokens;
    if (token.position >= std::min(paged, limits_.context_tokens)) {
      return invalid_input("a token is at {}, its sequence has pages for {} of {}", token.position,
                           paged, limits_.context_tokens);
    }
    const bool goes_on = index > 0 && batch_.tokens[index - 1].sequence == token.sequence;
    if (goes_on ? token.position != batch_.tokens[index - 1].position + 1 : seen_[token.sequence]) {
      return invalid_input("tokens of sequence {} are out of order", token.sequence);
    }
    seen_[token.sequence] = true;
  }
  return {};
}

Result<void> ReceivedBatch::check_logits() const {
  for (size_t row = 0; row < batch_.logit_tokens.size(); ++row) {
    const uint32_t token = batch_.logit_tokens[row];
    if (token >= batch_.tokens.size()) {
      return invalid_input("logits of token {} of {}", token, batch_.tokens.size());
    }
    if (row > 0 && token <= batch_.logit_tokens[row - 1]) {
      return invalid_input("rows of logits are wanted out of order");
    }
  }
  return {};
}

Result<void> ReceivedBatch::check_states() {
  const size_t count = limits_.state_slots;
  if (count == 0) {
    batch_.state_slots.clear();
    batch_.state_copies.clear();
    batch_.checkpoints.clear();
    return {};
  }
  if (batch_.state_slots.size() != lengths_.size()) {
    return invalid_input("{} sequences with {} states", lengths_.size(), batch_.state_slots.size());
  }
  seen_.assign(count, false);
  for (const uint32_t slot : batch_.state_slots) {
    if (slot >= count) return invalid_input("slot {} of {} for states", slot, count);
    if (seen_[slot]) return invalid_input("slot {} for two sequences' states", slot);
    seen_[slot] = true;
  }
  for (const Batch::StateCopy& copy : batch_.state_copies) {
    if (copy.from >= count || copy.to >= count || copy.from == copy.to) {
      return invalid_input("a state is copied from slot {} to {} of {}", copy.from, copy.to, count);
    }
  }
  for (size_t index = 0; index < batch_.checkpoints.size(); ++index) {
    const auto [token, slot] = batch_.checkpoints[index];
    const bool is_behind = index == 0 || token > batch_.checkpoints[index - 1].token;
    if (token >= batch_.tokens.size() || !is_behind) {
      return invalid_input("a state is kept behind token {} of {}, out of order", token,
                           batch_.tokens.size());
    }
    if (slot >= count) return invalid_input("a state is kept in slot {} of {}", slot, count);
    if (seen_[slot]) return invalid_input("a state is kept in slot {}, which is another's", slot);
    seen_[slot] = true;
  }
  return {};
}

}  // namespace lockstep
