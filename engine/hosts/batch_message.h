// The leader's commands to the followers, and a pass's batch as bytes. A follower believes none of
// them: what it has read can be run without a check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/pass/batch.h"

namespace lockstep {

enum class CommandKind : uint8_t {
  kPass = 1,        // a batch follows: run it
  kHiddenRows = 2,  // of the last pass: of which tokens follows, and the rows' form
  kKeptRows = 3,    // of the last pass: of which token follows
};

struct Command {
  CommandKind kind = CommandKind::kPass;
  uint32_t first_token = 0;  // of rows
  uint32_t token_count = 0;  // of kHiddenRows, as the form
  HiddenForm form = {};
  std::span<const std::byte> batch;  // of kPass, in the bytes that were read
};

// Each replaces what is in `to`, whose capacity is used again.
void write_pass(const Batch& batch, std::vector<std::byte>& to);
void write_hidden_rows(uint32_t first_token, uint32_t count, HiddenForm form,
                       std::vector<std::byte>& to);
void write_kept_rows(uint32_t token, std::vector<std::byte>& to);

// Fails with kInvalidInput for anything else.
Result<Command> read_command(std::span<const std::byte> bytes);

// Appends a batch. Its draws stay here: only the leader draws.
void write_batch(const Batch& batch, std::vector<std::byte>& to);

// The plan's, with which batches are run.
struct BatchLimits {
  size_t vocabulary_size = 0;
  size_t batch_tokens = 0;
  size_t logit_rows = 0;
  size_t sequence_count = 0;
  size_t page_count = 0;  // of the cache
  size_t group_count = 1;
  size_t state_slots = 0;     // 0: the model has no states, and those of a batch are not read
  size_t given_columns = 0;   // of the rows that are given with tokens; 0: none are
  size_t context_tokens = 0;  // of the longest sequence
};

// The bytes of the longest command under these limits.
size_t command_bytes_most(const BatchLimits& limits);

// A batch that came as bytes, and what its spans lie in. One thread at a time.
class ReceivedBatch {
 public:
  explicit ReceivedBatch(const BatchLimits& limits) : limits_(limits) {}

  // Fails with kInvalidInput where the bytes are no batch, or one that the limits do not allow: a
  // batch that was read trips no CHECK of Executor::run(), and no step indexes outside by it. Then
  // batch() is empty. Allocates nothing once there was a batch of that size.
  Result<void> read(std::span<const std::byte> bytes);

  const Batch& batch() const { return batch_; }
  // As before the first read().
  void clear() { batch_.clear(); }

 private:
  friend size_t command_bytes_most(const BatchLimits& limits);
  struct Counts;

  Result<void> fill(std::span<const std::byte> bytes);
  Result<void> check_counts(const Counts& counts) const;
  Result<void> check_tokens();
  Result<void> check_logits() const;
  Result<void> check_states();

  const BatchLimits limits_;
  Batch batch_;
  std::vector<uint32_t> pages_;    // of all tables
  std::vector<uint32_t> lengths_;  // by sequence: so many pages has each of its tables
  std::vector<bool> seen_;         // of sequences, or of slots
};

}  // namespace lockstep
