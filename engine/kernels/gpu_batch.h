// A pass's batch on a GPU: one block of the device's memory that the host fills and copies before
// the pass. Kernels read all counts from there and walk over the work in steps of their grid, so
// that a launch recorded in a graph serves every batch: the grid's size is a matter of speed alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/kernels/attention.h"

namespace lockstep {

// Tokens of a sequence whose queries one tile product takes.
inline constexpr uint32_t kGpuTileTokens = 16;

inline constexpr uint32_t kGpuNoRow = 0xFFFFFFFFU;

// A token's id with this bit is a row of the logits of the pass before, whose pick the token is
// (GpuDraw::picks): the host does not know it yet.
inline constexpr uint32_t kGpuPickOfRow = 0x80000000U;

// A generated token's keys are attended to by so many blocks side by side at most, per KV head,
// each of which has whole pages of them (gpu_attention.h). More would leave more to merge to the
// one that comes last; with 64, a rank's 8 KV heads are enough blocks for any GPU. Not measured.
inline constexpr uint32_t kGpuTokenUnits = 64;
constexpr uint32_t gpu_token_units(uint32_t position) {
  const auto pages = static_cast<uint32_t>(position / kPageTokens + 1);
  return pages < kGpuTokenUnits ? pages : kGpuTokenUnits;
}

// The capacity of a batch.
struct GpuBatchLimits {
  size_t tokens = 0;
  size_t sequences = 0;
  size_t pages = 0;            // of all sequences' page tables of a group together
  size_t groups = 1;           // of the cache's layers
  size_t logits = 0;           // rows
  size_t attention_units = 0;  // generated tokens beyond them are attended to by one block each
  size_t lengths = 0;          // sequences; none where no token sees later ones
  size_t segments = 0;         // tokens; none where segments are not looked up

  friend bool operator==(const GpuBatchLimits&, const GpuBatchLimits&) = default;
};

// A token to be drawn from a row of logits, by weights of exp((logit - the greatest) *
// inverse_temperature); those below `weight_min` count as 0.
struct GpuDrawRequest {
  float inverse_temperature = 0;  // 0: none is
  float weight_min = 0;
  double uniform = 0;  // in [0, 1)
};

// The description of one of a generated token's parts of attention that a block needs, in one load.
struct alignas(16) GpuAttentionUnit {
  uint32_t token;
  uint32_t position;  // the token's
  uint32_t pages;     // where in GpuBatch::pages its sequence's begin
  uint32_t index;     // among the token's units, which follow one another
};

struct GpuBatchCounts {
  uint32_t tokens;
  uint32_t generated;  // the first so many tokens; the others are prompted
  uint32_t split;      // of these the first so many have attention units
  uint32_t logits;
  uint32_t attention_units;
  uint32_t prompt_tiles;
  uint32_t sequences;  // that have tokens
  // Bytes behind the first place for results where this pass's lie: those of the pass before may
  // still be read.
  uint32_t result_offset;
};

// Addresses in that block, of the device, or of the host where it is filled.
struct GpuBatch {
  GpuBatchCounts* counts = nullptr;
  // [token]
  uint32_t* token_ids = nullptr;
  uint32_t* positions = nullptr;
  uint32_t* sequences = nullptr;
  uint32_t* segments = nullptr;      // of two texts that are one sequence; or none
  uint32_t* logit_rows = nullptr;    // the token's row of logits, or kGpuNoRow
  uint32_t* logit_tokens = nullptr;  // [logit row]: the token, ascending
  GpuDrawRequest* draws = nullptr;   // [logit row]
  // [tile]: consecutive prompted tokens of one sequence, the first of them and how many. Those that
  // see most keys come first.
  uint32_t* tile_tokens = nullptr;
  uint32_t* tile_counts = nullptr;
  // [sequence]: where in `pages` its page table begins: the numbers of its pages, in order.
  uint32_t* page_tables = nullptr;
  uint32_t* lengths = nullptr;  // tokens that have keys, this batch's included; or none
  // [unit]: gpu_token_units() of each generated token before `split`, in order.
  GpuAttentionUnit* units = nullptr;
  // The first group's; the next one's follow, each at the same places. The block's last, since most
  // of the capacity is for them, and passes use the least of it.
  uint32_t* pages = nullptr;
};

size_t gpu_batch_bytes(const GpuBatchLimits& limits);
// 16-byte aligned.
GpuBatch gpu_batch_at(std::byte* block, const GpuBatchLimits& limits);

// Fills a batch in the host's memory. Allocates nothing; more than its capacity is a bug.
class GpuBatchWriter {
 public:
  GpuBatchWriter(std::byte* block, const GpuBatchLimits& limits);

  // An empty batch.
  void begin();
  // Returns the sequence's index.
  uint32_t add_sequence(std::span<const uint32_t> pages) { return add_sequence({&pages, 1}); }
  // With a table for each group, all equally long.
  uint32_t add_sequence(std::span<const std::span<const uint32_t>> tables);
  // Generated tokens come before all prompted ones; a sequence's stand together, in order.
  void add_generated(uint32_t token_id, uint32_t position, uint32_t sequence, uint32_t segment = 0);
  void add_prompted(uint32_t token_id, uint32_t position, uint32_t sequence, uint32_t segment = 0);
  // Asks for the logits of the token added last.
  void want_logits(const GpuDrawRequest& draw = {});
  // Lays out the attention of what has been added. Generated tokens get their units in order, up to
  // the first that exceeds the capacity.
  void end();
  // The bytes of the block that are to be copied, from its beginning on: after end().
  size_t used_bytes() const;

  const GpuBatch& batch() const { return batch_; }

 private:
  void add_token(uint32_t token_id, uint32_t position, uint32_t sequence, uint32_t segment);

  GpuBatchLimits limits_;
  GpuBatch batch_;
  size_t sequence_count_ = 0;
  size_t page_count_ = 0;
};

}  // namespace lockstep
