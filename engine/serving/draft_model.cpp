#include "engine/serving/draft_model.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/serving/model_draft_stage.h"
#include "engine/serving/predicting_stage.h"

namespace lockstep {

Result<std::unique_ptr<DraftModel>> DraftModel::make(
    const DraftFile& file, const ModelLayout& layout, const Model& model, Executor& model_executor,
    const KernelTable& kernels, const GpuPlatform* gpus, const EngineOptions& options) {
  const DraftLayout& draft = *layout.draft;
  std::vector<ArenaSources> sources(layout.places.size());
  for (ArenaSources& source : sources) source.lock = options.lock_memory;
  auto ranks = Ranks::make(file.model.graph, draft.split, draft.plan_options, layout.places,
                           std::move(sources), gpus, model_executor.ranks().workers());
  if (!ranks) return std::unexpected(ranks.error());
  std::unique_ptr<DraftModel> made(new DraftModel(file, std::move(*ranks)));
  made->executor_ = std::make_unique<Executor>(*made->ranks_, kernels);
  const size_t positions = file.model.has_longer_contexts ? std::numeric_limits<size_t>::max()
                                                          : file.model.trained_context_tokens;
  const size_t pages = layout.plan_options.kv_pages;
  if (file.model.graph.given_columns() > 0) {
    made->stage_ = std::make_unique<PredictingStage>(
        model_executor, *made->executor_, made->ranks_->root_plan(),
        PredictingStage::Limits{.given = file.model.given,
                                .logit_tokens = file.model.logit_tokens,
                                .model_pages = pages,
                                .positions = positions});
  } else {
    made->stage_ = std::make_unique<ModelDraftStage>(
        *made->executor_, ModelDraftStage::Limits{.model_pages = pages,
                                                  .sequences = draft.plan_options.logit_rows,
                                                  .batch_tokens = draft.plan_options.batch_tokens,
                                                  .vocabulary = model.vocabulary_size,
                                                  .draft_vocabulary = file.model.vocabulary_size,
                                                  .positions = positions});
  }
  uint64_t weights = 0;
  uint64_t cache = 0;
  uint64_t others = 0;
  for (const RankSizes& sizes : draft.sizes) {
    weights += sizes.weight_bytes;
    cache += sizes.kv_bytes;
    others += sizes.activation_bytes();
  }
  spdlog::info(
      "draft model {} ({}): {} MiB of weights, {} MiB KV cache, {} MiB activations, at the model's "
      "ranks and with their workers",
      file.file.parts().front().string(), file.model.architecture, weights >> 20U, cache >> 20U,
      others >> 20U);
  return made;
}

}  // namespace lockstep
