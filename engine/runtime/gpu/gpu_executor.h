// A rank's part on its GPU: memory for its arenas, and its plan as launches. The rank's one worker
// drives it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/node_memory.h"
#include "engine/pass/batch.h"
#include "engine/planner/planner.h"
#include "engine/runtime/gpu/gpu_border.h"
#include "engine/runtime/gpu/gpu_pass_results.h"
#include "engine/runtime/gpu/gpu_platform.h"
#include "engine/runtime/gpu/gpu_program.h"
#include "engine/runtime/gpu/gpu_trials.h"

namespace lockstep {

// The part of a GPU's activations that lies in the host's memory.
struct HostShare {
  bool exchange = false;  // what ranks exchange: other ranks are processors
  bool logits = false;    // then, and where GPUs do not reach one another's memory
};

// The memory of a border: so many chunks' rows, one where passes are one chunk, of so many bytes.
// More would let a GPU be further ahead of the next one than a chunk, and gain nothing where both
// take as long.
inline constexpr size_t kHandedSlots = 3;
size_t handed_slots(const Plan& plan);
size_t handed_bytes(const Plan& plan, const HandOverStep& step);

// The host's memory for rows that batches bring; 0: they bring none.
size_t gpu_given_bytes(const Plan& plan);

class GpuExecutor {
 public:
  // NCCL's time for finding and connecting the GPUs.
  static constexpr std::chrono::seconds kJoinDeadline{60};
  // For a GPU that NCCL has let go of to be done with the rest, or one to say that it waits.
  static constexpr std::chrono::milliseconds kLastWait{200};

  // Fails with kMachineRefused.
  static Result<std::unique_ptr<GpuExecutor>> open(const GpuPlatform& platform, int gpu);
  ~GpuExecutor();

  // Takes the memory that the plan, which is one for a GPU, needs but for the host's share. `node`:
  // of its own memory on the host.
  Result<void> allocate(const Plan& sizes, int node, const HostShare& host);
  // Makes the host's memory, which must outlive this, reachable for the GPU.
  Result<void> pin(const NodeMemory& memory);
  // Lets each of all ranks, which are GPUs, reach the others' memory, where all can. Then tries
  // whether they do (gpu_trials.h).
  static Result<void> reach(std::span<GpuExecutor* const> ranks);
  static Result<void> try_links(std::span<GpuExecutor* const> ranks);
  // Once all have allocated: makes what they exchange through, memory where `reached`, and NCCL
  // where not or where some of the plan's sums are to go that way. What is returned has to live as
  // long as the ranks compute; null: there is no NCCL, or no need.
  static Result<std::unique_ptr<NcclRanks>> connect(std::span<GpuExecutor* const> ranks,
                                                    const Plan& sizes, const Result<void>& reached);
  // The same among several hosts, of which each takes its own ranks': `joined` are all hosts'
  // ranks. `plans`: of all of them; `first`: the first of these among them.
  static Result<void> connect_hosts(std::span<GpuExecutor* const> ranks,
                                    std::span<const Plan> plans, size_t first, NcclRanks& joined);
  // The same where ranks have layers by themselves: the borders between them, which have to live as
  // long. `sizes`: any rank's plan. `nodes`: of each rank; rows that go through the host lie on
  // that of the rank that takes them.
  static Result<std::vector<std::unique_ptr<GpuBorder>>> connect_layers(
      std::span<GpuExecutor* const> ranks, const Plan& sizes, bool reached,
      std::span<const int> nodes);
  // Then, where more than two reach one another's memory: times sums of up to so many bytes
  // (gpu_trials.h), by all ranks at the same time, in the memory that activations will have; and
  // takes what follows from it, for all ranks alike. Both before prepare().
  size_t timed_sum_bytes_max() const;
  Result<std::vector<GpuSumRounds>> time_sums(size_t bytes_max);
  void set_one_shot_bytes_max(size_t bytes) { links_.one_shot_bytes_max = bytes; }
  // But for those that are the host's.
  ArenaAddresses arenas() const;

  // Makes the launches of the plan, and records those of passes that generate for up to as many
  // sequences as it has space for. Once, after allocate(). All must outlive this.
  Result<void> prepare(const Plan& plan, const ArenaAddresses& addresses, const Peers& peers);

  // Once, for all ranks that NCCL has joined at the same time, before the first pass: their first
  // exchanges, which connect them.
  Result<void> exchange_first();

  // After a pass that has failed because another host was lost: waits until the GPU is done with
  // what was enqueued. Fails with kMachineRefused where this GPU has failed as well; else all is as
  // before the pass but for keys and values.
  Result<void> recover();

  // Computes a pass, by one thread at a time; when it returns, the logits are there, and their
  // candidates. Allocates nothing. After a failure nothing more can be computed.
  Result<void> run(const Batch& batch);
  // If this GPU computes the whole model by itself (after prepare()), a pass is also run in two
  // calls: start() enqueues it, end() waits for it as run() does.
  bool is_alone() const { return is_alone_; }
  Result<void> start(const Batch& batch);
  // Enqueues one more behind it, whose tokens are picks of its rows (Batch::picked_rows). False:
  // settings or the pass's shape, which is not recorded, do not let it, and nothing has happened.
  // Each end() then ends one of both, in their order. The deadline of the second counts from the
  // end of the first; between both, results are the first one's, and rows cannot be fetched.
  Result<bool> start_ahead(const Batch& batch);
  // Whether it ever does.
  bool starts_ahead() const { return is_alone_ && settings().pass_ahead; }
  Result<void> end();
  // The same in parts, among processors: begin(), then run_steps() of the plan's steps in order,
  // without those that sum; what a part has computed is there when it returns.
  Result<void> begin(const Batch& batch);
  Result<void> run_steps(Range steps);

  // Those of the last pass, [logit row]; null where the logits are another rank's or the host's.
  const GpuCandidateRow* candidates() const {
    return reinterpret_cast<const GpuCandidateRow*>(result_places().candidates);
  }
  // Rows of logits and of the residual of the last pass, in the GPU's memory.
  const float* logit_row(size_t row) const {
    return result_places().logits + row * plan_->logits_stride;
  }
  const float* hidden_residual(size_t token) const {
    return result_places().hidden + token * plan_->hidden.residual_stride;
  }

  // The draws of rows from which Batch::draws wanted one; where there are candidates.
  const GpuDrawn* drawn() const {
    return reinterpret_cast<const GpuDrawn*>(candidates() + plan_->logit_rows);
  }

  // Floats of the GPU's memory, between passes. What is fetched is valid until the next call of any
  // of these; a hidden row or a row of logits at most.
  Result<std::span<const float>> fetch(const float* from, size_t count);
  Result<void> read(const float* from, std::span<float> to);

  GpuDevice& device() { return *device_; }
  const GpuKernels& kernels() const { return *platform_.kernels; }
  const GpuSettings& settings() const { return platform_.settings; }
  const GpuPlatform& platform() const { return platform_; }
  size_t recording_count() const { return recordings_.size(); }
  // The bytes that the last pass has sent to the other ranks, all of them GPUs, and its time in
  // exchange.
  struct Exchanged {
    size_t bytes = 0;
    uint64_t nanoseconds = 0;
  };
  const Exchanged& exchanged() const { return exchanged_; }

  // True where the failure is another rank's: this GPU has waited for it, and answers.
  bool has_waited_in_vain() const { return has_waited_in_vain_; }

 private:
  GpuExecutor(const GpuPlatform& platform, std::unique_ptr<GpuDevice> device)
      : platform_(platform), device_(std::move(device)) {}

  // The GPU writes it.
  struct Report {
    uint32_t failure = 0;  // which rank did not come: missing_rank()
    uint64_t spent_ns = 0;
    uint32_t waiting = 0;  // awaited_rank()
  };

  // A residual at a border of this rank's layers.
  struct HandOver {
    GpuBorder* border = nullptr;  // null: there is none
    std::byte* rows = nullptr;    // of a chunk, in this GPU's memory
    size_t stride_bytes = 0;
  };

  static Result<void> take_mailboxes(std::span<GpuExecutor* const> ranks);
  Result<void> take_mailbox(size_t rank, size_t rank_count);
  Result<void> take_link(NcclRanks& joined, size_t rank, size_t rank_count, size_t floats);
  Result<void> compute(const Batch& batch);
  Result<void> enqueue(Range steps, std::chrono::steady_clock::time_point begin);
  Result<void> play_or_enqueue(std::chrono::steady_clock::time_point begin);
  // One chunk of a pass that began then; `rows`: of logits, that its tokens want.
  Result<void> compute(const Batch& batch, Range tokens, Range rows,
                       std::chrono::steady_clock::time_point begin);
  Result<void> begin(const Batch& batch, Range tokens, Range rows);
  Result<void> take_rows(size_t tokens, std::chrono::steady_clock::time_point begin);
  Result<void> give_rows(size_t tokens, std::chrono::steady_clock::time_point begin);
  // The places where a chunk leaves results, and where those of the last pass are.
  GpuPassResults::Places chunk_places() const;
  GpuPassResults::Places result_places() const {
    return has_chunks_ ? results_.places() : chunk_places();
  }
  void find_hand_overs();
  bool computes_alone() const;
  void count_exchange(std::span<const BatchToken> tokens);
  uint64_t exchange_time() const;  // so far, in nanoseconds
  Result<void> wait() { return wait(settings().pass_deadline); }
  // For what was before the event; null: for everything.
  Result<void> wait(std::chrono::nanoseconds deadline, const GpuEvent* event = nullptr);
  Result<void> wait_since(std::chrono::steady_clock::time_point begin);
  std::unexpected<Error> who_hangs(const Error& error);
  std::unexpected<Error> did_not_come(size_t rank);
  std::unexpected<Error> did_not_hand_over(size_t rank);
  std::optional<size_t> missing_peer() const;
  std::optional<size_t> awaited_peer();
  Result<void> record();
  Result<void> fill_constants();
  Result<void> clear_counters();
  size_t write_batch(const Batch& batch, Range tokens, Range rows, size_t turn = 0);
  void keep_given_rows(const Batch& batch, Range tokens);
  std::byte* staging(size_t turn) const {
    return turn == 0 ? staging_.data() : staging_ahead_.data();
  }

  const GpuPlatform& platform_;
  std::unique_ptr<GpuDevice> device_;
  GpuMemory weights_;
  GpuMemory scratch_;
  GpuMemory exchange_;
  GpuMemory kv_;
  GpuMemory logits_;
  GpuMemory mailbox_;   // of several ranks
  GpuMemory received_;  // what other ranks send by NCCL
  NodeMemory staging_;  // of the host: what is copied to the GPU before a pass, or from it after
  NodeMemory staging_ahead_;  // likewise, of every second pass that is started ahead
  NodeMemory given_rows_;     // of the host: what batches bring with their tokens
  NodeMemory candidates_;     // of the logits, of two passes in turns
  NodeMemory report_;         // a Report, of exchanges over peer memory
  std::vector<GpuMemory> pinned_;
  GpuLinks links_;
  HandOver taken_;  // before the rank's first layer
  HandOver given_;  // behind its last one
  GpuPassResults results_;
  bool has_chunks_ = false;  // the last pass, several
  bool among_processors_ = false;
  bool is_alone_ = false;  // computes_alone(), once prepared
  // Passes that have been started and not ended.
  struct StartedPass {
    std::chrono::steady_clock::time_point at;
    size_t turn = 0;  // the place of its batch on the host, and of its results
  };
  std::array<StartedPass, kGpuPassesAtOnce> started_;
  size_t started_count_ = 0;
  size_t turn_ = 0;                        // of the pass that was ended last
  std::unique_ptr<GpuEvent> first_ended_;  // of two passes that have been started
  std::chrono::steady_clock::time_point last_end_;
  const Plan* plan_ = nullptr;
  const ArenaAddresses* addresses_ = nullptr;
  const GpuAreas* areas_ = nullptr;  // the plan's
  std::unique_ptr<GpuMatrixLibrary> library_;
  std::unique_ptr<GpuProgram> program_;
  std::unique_ptr<GpuStream> stream_;
  GpuPassShape shape_;  // of the pass at hand
  bool has_waited_in_vain_ = false;
  Exchanged exchanged_;
  uint64_t exchange_ns_ = 0;  // of all passes, and what came before
  std::map<GpuPassShape, std::unique_ptr<GpuRecording>> recordings_;
};

}  // namespace lockstep
