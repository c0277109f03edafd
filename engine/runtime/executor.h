// Runs passes: all ranks compute one batch at the same time, each its share.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/pass/batch.h"
#include "engine/pass/pass_layout.h"
#include "engine/runtime/ranks.h"
#include "engine/sampling/logit_row.h"

namespace lockstep {

class Executor {
 public:
  // Both must outlive this.
  Executor(Ranks& ranks, const KernelTable& kernels);

  // Computes the batch: keys and values of all its tokens are in the cache afterwards, the logits
  // of its logit tokens in logits(). One caller at a time; blocks. CHECKs that the batch fits the
  // plan; it is not needed after the call. Fails with kMachineRefused when a GPU has failed:
  // nothing is asked of it any more then, and every later call fails.
  Result<void> run(const Batch& batch);
  // The same in two calls: begin() may return before it is computed, finish() afterwards. The batch
  // is needed until finish() where processors compute.
  Result<void> begin(const Batch& batch);
  Result<void> finish();
  // Between the two: begins one more pass, whose tokens are picks of the first one's rows
  // (Batch::picked_rows), where one GPU alone computes. Each finish() then ends one of both, in
  // their order, and what is read is of the pass that was finished last; but rows cannot be fetched
  // while another runs. The batch is not needed after the call. False: it does not let passes begin
  // ahead, or this one, and nothing has happened.
  Result<bool> begin_ahead(const Batch& batch);
  // Whether it ever does.
  bool begins_ahead() const;
  // Finishes the passes that have begun. Their results and failures do not matter.
  void finish_all();
  // The token that a pass which has begun ahead takes for the last finished pass's row.
  TokenId pick(size_t row) const { return ranks_[0].candidates(row, {}).pick; }
  // The first failure of run(), read_hidden_rows() or a row that was fetched, if one has failed.
  const std::optional<Error>& failure() const { return failure_; }
  // Fails as a pass would have; between passes.
  void abandon(Error reason) { failure_ = std::move(reason); }
  // Forgets a failure that was the former group's: the ranks' memory is as the plan wants it, but
  // for what the cache and states hold.
  void start_over() { failure_.reset(); }

  // After which a pass has failed, whatever it does: where all ranks are GPUs.
  std::optional<std::chrono::seconds> pass_deadline() const { return needs_.deadline; }

  // The units (gpu_token_units()) that generated tokens of a pass may have, all together, before
  // attention to them becomes slow; 0: no rank is a GPU.
  size_t attention_units() const { return needs_.attention_units; }

  // The logits of the last batch's logit token `row`; valid until the next run(), and what is
  // fetched of it until another row is, or a hidden one. If all ranks are GPUs that reach one
  // another's memory, a row's likeliest tokens are at hand.
  LogitRow logits(size_t row);
  // Batch::draws are heeded; elsewhere they are of no use.
  bool draws_tokens() const { return ranks_[0].finds_candidates(); }

  Ranks& ranks() const { return ranks_; }
  // A hidden row, in f32: what the last norm makes of a token, and logits are products of, or what
  // it reads.
  size_t hidden_width() const { return ranks_.root_plan().hidden.width; }
  // The most that are read at once.
  size_t hidden_rows_at_once() const;
  // Reads those of the last batch's tokens from the first one on, whichever its logit tokens are,
  // until the next run(); `rows`: as many as are wanted, each as wide as hidden_width(). The same
  // bits for any number of ranks under `gather`. Fails as run().
  Result<void> read_hidden_rows(size_t first_token, std::span<float> rows,
                                HiddenForm form = HiddenForm::kNormed);

  // The columns of all values that the graph keeps (Graph::keep()), one value behind the other.
  size_t kept_width() const;
  // Reads those of a token of the last batch, until the next run(); `row`: kept_width() columns, in
  // f32. The same bits for any number of ranks under `gather`. Of processors alone. All hosts call
  // it where others_keep_rows(). Fails as run().
  Result<void> read_kept_rows(size_t token, std::span<float> row);

 private:
  std::unexpected<Error> fail(const Error& error);
  Result<std::span<const float>> fetch_logits(size_t row);
  void check(const Batch& batch) const;
  // The part of a pass's batch that is kept.
  struct PassOutline {
    size_t token_count = 0;
    size_t row_count = 0;  // of logits
    std::vector<LogitDrawRequest> draws;

    void take(const Batch& batch) {
      token_count = batch.tokens.size();
      row_count = batch.logit_tokens.size();
      draws.assign(batch.draws.begin(), batch.draws.end());
    }
  };
  Result<void> take_hidden(Rank& rank, size_t token, std::span<float> row, std::span<float> sums,
                           HiddenForm form);

  Ranks& ranks_;
  const KernelTable& kernels_;
  RankNeeds needs_;                   // of all ranks together
  PassLayout layout_;                 // of the batch, where a rank reads it
  PassInput input_;                   // of the last pass
  PassOutline last_;                  // of the pass that was finished last
  std::array<PassOutline, 2> begun_;  // of those that have begun since
  size_t begun_count_ = 0;
  std::vector<Result<void>> results_;  // of a pass, by rank
  std::optional<Error> failure_;
  std::vector<float> hidden_sums_;  // of hidden rows' chunks, [row]
};

}  // namespace lockstep
