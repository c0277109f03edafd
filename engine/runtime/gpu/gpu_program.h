// A GPU rank's plan as launches of kernels, every argument fixed when it is made. What varies from
// pass to pass the kernels read from the batch in the GPU's memory; a pass's shape decides how many
// blocks they get, and so no bit of any result.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "engine/collectives/gpu_nccl_sum.h"
#include "engine/collectives/shared_memory.h"
#include "engine/operations/plan.h"
#include "engine/pass/batch.h"
#include "engine/runtime/gpu/gpu_pass_shape.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {

// The largest sum of a plan's passes, or what all ranks embed: what a message by NCCL has at most.
size_t exchanged_floats_max(const Plan& plan);

// A GPU's ways to those of all other ranks: one of the two at least. They enqueue the same shapes
// in the same order.
struct GpuLinks {
  std::optional<GpuPeers> peers;             // over their memory
  std::optional<GpuNcclLink> nccl;           // failures are told by its ranks' check()
  std::optional<size_t> one_shot_bytes_max;  // GpuSumQuestion's, of all ranks
  // By rank the columns of its part of the logits, which are brought to rank 0 by NCCL; none: rank
  // 0's memory of them is every rank's.
  std::vector<Range> logit_columns = {};
};

// The columns that a rank's plan has of the logits, other than rank 0's.
Range logit_columns(const Plan& plan);

// The host's memory, pinned, that a rank's launches use.
struct GpuHostRows {
  GpuCandidateRow* candidates = nullptr;  // of each row of logits; none: the rank has no logits, or
                                          // they lie in the host's memory
  const float* given = nullptr;           // that the pass's tokens bring; none: they bring none
};

class GpuProgram {
 public:
  // CHECKs that the plan is one for a GPU. `addresses`: of the plan's offsets. `library`: for the
  // rank's stream, with the plan's memory for it; must outlive this. `links`: of several ranks, all
  // of them GPUs, that have parts of layers. None: the GPU has whole layers, or others are
  // processors: what is exchanged with those is the host's work, and no launch.
  GpuProgram(const Plan& plan, const ArenaAddresses& addresses, const Peers& peers,
             const GpuPlatform& platform, GpuMatrixLibrary& library, const GpuLinks& links,
             const GpuHostRows& host);

  // Prepares the library for every product that it will compute, and enqueues one of each shape.
  Result<void> prepare(void* stream) const;

  // CUDA lets a thread be about 1,024 launches ahead of the GPU, and keeps it from then on until
  // one is done, for ever where none is. What looks at deadlines waits for the stream before,
  // which costs the GPU tens of microseconds each time: nothing beside so many launches of a
  // prompt's. Neither was measured.
  static constexpr size_t kLaunchesAtOnce = 256;

  // All of the plan's steps, and what is launched for some of them.
  Range steps() const { return {0, step_begins_.size() - 1}; }
  Range launches(Range steps) const { return {step_begins_[steps.begin], step_begins_[steps.end]}; }

  // Launches these for a pass of this shape, from the first on, until there are `count_max` or a
  // few more (a product of F32 weights is up to three for every 64 tokens); returns what is left.
  // The batch is in the GPU's memory by then, copied on the same stream. What the library refuses
  // is missing: its state() tells.
  Range enqueue(void* stream, const GpuPassShape& shape, Range launches,
                size_t count_max = kLaunchesAtOnce) const;

  // True where the launches of such a pass can be recorded. NCCL's cannot: it meets the other
  // ranks' threads while it is enqueued.
  bool is_recordable(const GpuPassShape& shape) const;
  // The bytes that this rank sends to others in a pass of this shape with these tokens.
  size_t sent_bytes(const GpuPassShape& shape, std::span<const BatchToken> tokens) const;
  // Sums by NCCL of as many rows as a pass can have, and fewer, so that no pass is the first to
  // connect the ranks. All of them at the same time.
  void connect(void* stream) const;

 private:
  struct Product {
    GpuRowSet rows = GpuRowSet::kTokens;
    GpuProduct product;
    std::vector<GpuPanel> panels;  // by which prompted tokens are multiplied; none: as others are
  };
  // Rows of experts are prompted and generated tokens' in one.
  struct Experts {
    GpuExpertProduct product;
    size_t chosen_count = 0;
  };
  struct Attention {
    GpuHeads heads;
    GpuAttention attention;
  };
  struct Sum {
    Rows rows = Rows::kTokens;
    std::vector<size_t> contributors;  // ranks
    GpuAllReduce sum;                  // of all rows that there is space for
    // The norms that read it, at most kGpuProductNorms. Over peer memory they are a part of the
    // sum; if any of a pass's rows go by NCCL, they are launched behind it.
    std::vector<GpuNormRows> norms;
  };
  struct RankBarrier {};
  // The exchange of rows of the embedding, where ranks do not write into one another's memory.
  struct Join {
    float* rows = nullptr;
    size_t stride = 0;  // floats
  };
  // The rows of logits, of which each rank has columns in memory of its own.
  struct LogitColumns {
    float* rows = nullptr;  // null: they are not gathered
    size_t stride = 0;      // floats
    size_t row_count = 0;   // that there is space for
  };
  // The barrier after which the ranks' parts of the logits are there, or what brings them to rank
  // 0, and the search for candidates.
  struct Search {
    bool meets = false;
    LogitColumns gather = {};
    GpuCandidates find = {};  // no rows: on another rank
    GpuDraw draw = {};
  };
  using Launch =
      std::variant<GpuRotaryTable, GpuEmbedding, GpuNormRows, GpuElementwise, GpuChunkSums,
                   GpuWholeNorm, GpuHeadRows, GpuHeadCopy, GpuRowMeans, Product, GpuRouting,
                   Experts, GpuExpertSum, Attention, Sum, RankBarrier, Join, Search>;
  class Builder;

  // Each returns how many launches that were, at most.
  size_t run(const GpuRotaryTable& rotary, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuEmbedding& embedding, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuNormRows& norm, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuElementwise& step, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuChunkSums& sums, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuWholeNorm& norm, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuHeadRows& heads, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuHeadCopy& copy, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuRowMeans& means, void* stream, const GpuPassShape& shape) const;
  size_t run(const Product& product, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuRouting& routing, void* stream, const GpuPassShape& shape) const;
  size_t run(const Experts& experts, void* stream, const GpuPassShape& shape) const;
  size_t run(const GpuExpertSum& sum, void* stream, const GpuPassShape& shape) const;
  size_t run(const Attention& attention, void* stream, const GpuPassShape& shape) const;
  size_t run(const Sum& sum, void* stream, const GpuPassShape& shape) const;
  size_t run(const RankBarrier& barrier, void* stream, const GpuPassShape& shape) const;
  size_t run(const Join& join, void* stream, const GpuPassShape& shape) const;
  size_t run(const Search& search, void* stream, const GpuPassShape& shape) const;
  size_t run_panels(const Product& product, void* stream, const GpuPassShape& shape) const;
  size_t unpack(const GpuProduct& product, const GpuPanel& panel, void* stream) const;
  // `panel_sums`: none where the output has them.
  void finish(const GpuProduct& product, const GpuPanel& panel, const float* panel_sums,
              void* stream, const GpuPassShape& shape) const;
  GpuMatrixProduct library_product(const GpuProduct& product, const GpuPanel& panel,
                                   size_t token_begin, size_t tokens) const;

  // The rows that a pass of this shape has: those that travel as f32, and those as bf16. Either may
  // be none. Where the user has asked for bf16, it is the prompted tokens' rows that travel so,
  // however few, and neither those of generated tokens nor of logits, however many: were it what a
  // message's size decides, a token's bits would depend on how many others its pass has. It comes
  // near to that: prompts are long messages, for which a link's width counts; tokens that are
  // generated are few, and for them its latency does.
  std::array<GpuAllReduce, 2> parts_of(const Sum& sum, const GpuPassShape& shape) const;
  // Sums the rows, with the norms where that goes over peer memory; returns as run() does.
  size_t exchange(const Sum& sum, void* stream, const GpuPassShape& shape) const;
  size_t gather(const LogitColumns& logits, void* stream, const GpuPassShape& shape) const;
  size_t gathered_rows(const LogitColumns& logits, const GpuPassShape& shape) const {
    return logits.rows == nullptr ? 0 : std::min<size_t>(shape.logits, logits.row_count);
  }
  GpuSumWay way_of(const GpuAllReduce& sum) const;
  bool is_by_nccl(const Sum& sum, const GpuPassShape& shape) const;  // a part of it
  size_t joined_floats(const Join& join, const GpuPassShape& shape) const {
    return std::min<size_t>(shape.tokens, batch_tokens_) * join.stride;
  }

  const GpuKernels& kernels_;
  const GpuCollectives& collectives_;
  GpuSumWay (*const sum_way_)(const GpuSumQuestion& question);
  GpuMatrixLibrary& library_;
  uint16_t* panel_ = nullptr;  // of GpuAreas
  float* panel_sums_ = nullptr;
  GpuLinks links_;
  size_t rank_ = 0;
  size_t rank_count_ = 1;
  size_t batch_tokens_ = 0;  // of a pass that are computed at once, at most
  std::vector<Launch> launches_;
  std::vector<size_t> step_begins_;  // by step the first of its launches, and the end of all
};

}  // namespace lockstep
