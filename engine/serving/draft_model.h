// A model that drafts, a smaller one or a block of the model, in memory: its ranks, at the places
// of the model's ranks and with their workers, and the stage of the loop that drafts by it.
#pragma once

#include <memory>

#include "engine/base/result.h"
#include "engine/interface/options.h"
#include "engine/kernels/kernel_table.h"
#include "engine/placement/draft_file.h"
#include "engine/placement/model_layout.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/ranks.h"
#include "engine/serving/draft_stage.h"
#include "engine/serving/weight_filling.h"

namespace lockstep {

class DraftModel {
 public:
  // Takes its memory, of the layout's sizes; the weights are to be filled. `file`, the
  // kernels and the platform of places on GPUs outlive this. Says in the log what it takes. Fails
  // with kMachineRefused.
  static Result<std::unique_ptr<DraftModel>> make(const DraftFile& file, const ModelLayout& layout,
                                                  const Model& model, Executor& model_executor,
                                                  const KernelTable& kernels,
                                                  const GpuPlatform* gpus,
                                                  const EngineOptions& options);

  WeightFilling filling() { return {file_.file, file_.model.graph, *ranks_}; }
  DraftStage& stage() { return *stage_; }
  const Ranks& ranks() const { return *ranks_; }

 private:
  DraftModel(const DraftFile& file, std::unique_ptr<Ranks> ranks)
      : file_(file), ranks_(std::move(ranks)) {}

  const DraftFile& file_;
  std::unique_ptr<Ranks> ranks_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DraftStage> stage_;
};

}  // namespace lockstep
