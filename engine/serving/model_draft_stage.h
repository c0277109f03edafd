// Drafts by a smaller model: the likeliest token of each pass. Its KV cache has the model's pages,
// by number, so a sequence's page table leads to both, and what is found of a prefix is found of
// both, as far as the smaller model has computed it (DraftPages). What it lacks it computes before
// it drafts, in passes of a tenth of a second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafting/draft_pages.h"
#include "engine/pass/batch.h"
#include "engine/runtime/executor.h"
#include "engine/serving/draft_stage.h"

namespace lockstep {

class ModelDraftStage final : public DraftStage {
 public:
  struct Limits {
    size_t model_pages = 0;  // of the model's cache; the smaller one's has `sequences` more
    size_t sequences = 0;    // of a pass at most
    size_t batch_tokens = 0;
    size_t vocabulary = 0;        // of the model; tokens of the other one that are no words of it,
    size_t draft_vocabulary = 0;  // and the other way round, are never drafted or read
    size_t positions = 0;         // of the smaller model; longer texts are not drafted
  };

  // `executor`: of the smaller model, and of nothing else; outlives this.
  ModelDraftStage(Executor& executor, const Limits& limits);

  Result<void> draft(std::span<DraftStream> streams) override;
  double reading_seconds(DraftStream& stream) const override;
  void rest() override;
  void clear_pages(std::span<const uint32_t> pages) override { held_.clear(pages); }
  double pass_seconds() const override { return pass_seconds_; }

 private:
  // A stream's part of the passes of one draft.
  struct Part {
    DraftStream* stream = nullptr;
    std::vector<uint32_t> pages;  // the stream's, and the own one behind them if it is needed
    size_t begin = 0;      // of what the next pass computes: a position of the text and draft
    size_t count = 0;      // 0: it has no part in it
    bool is_read = false;  // all known tokens are computed with that pass
  };

  size_t held_tokens(DraftStream& stream) const;
  void add_part(DraftStream& stream);
  void share_first_pass();
  bool takes_pages(const Part& part);
  Result<void> run_pass();
  void add_tokens(const Part& part);
  static TokenId token(const Part& part, size_t position);
  void note_written(const Part& part);
  bool read_draft(Part& part, size_t row);

  Executor& executor_;
  const Limits limits_;
  DraftPages held_;
  std::vector<Part> parts_;  // in the order of the pass
  Batch batch_;
  std::vector<uint32_t> turns_;  // by page: the last turn in which some part has written to it
  uint32_t turn_ = 0;
  std::vector<TokenId> written_;  // reused
  double pass_seconds_ = 0;
  double token_seconds_ = 0;  // of one more token of a text that is read; 0: not known
};

}  // namespace lockstep
