#include "engine/placement/model_layout.h"

#include <algorithm>

#include "engine/collectives/gpu_all_reduce.h"
#include "engine/model/weight_loader.h"
#include "engine/runtime/gpu/gpu_program.h"

namespace lockstep {

std::vector<RankSizes> rank_sizes(const Model& model, const Split& split, PlanOptions options,
                                  size_t kv_pages, std::span<const RankPlace> places,
                                  bool gpus_linked) {
  const auto is_gpu = [](const RankPlace& place) { return place.gpu.has_value(); };
  const bool all_gpus = std::ranges::all_of(places, is_gpu);
  options.kv_pages = kv_pages;
  std::vector<RankSizes> sizes;
  for (size_t rank = 0; rank < split.rank_count; ++rank) {
    const Plan plan = make_plan(model.graph, split, rank, options_on(places[rank], options));
    RankSizes& own = sizes.emplace_back();
    own.weight_bytes = plan.weight_bytes;
    own.kv_bytes = plan.kv.size_bytes();
    own.scratch_bytes = plan.scratch_bytes;
    own.exchange_bytes = plan.exchange_bytes;
    own.logits_bytes = plan.logits_bytes;
    own.on_gpu = is_gpu(places[rank]);
    own.exchange_on_host = !all_gpus;
    own.logits_on_host = !all_gpus || !gpus_linked;
    if (!own.on_gpu) continue;
    own.staging_bytes = gpu_staging_bytes_max(model.graph);
    if (!own.logits_on_host) own.candidate_bytes = std::get<GpuAreas>(plan.areas).candidate_bytes;
    if (!all_gpus) continue;  // then passes are not recorded, and sums are the host's
    own.recording_bytes = recording_bytes(plan);
    own.message_floats = exchanged_floats_max(plan);
    if (places.size() > 1 && gpus_linked) {
      own.mailbox_bytes = gpu_mailbox_bytes(places.size(), GpuPeers().channel_count);
    }
  }
  return sizes;
}

}  // namespace lockstep
