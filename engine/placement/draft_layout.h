// The place of a second, smaller model that drafts tokens for the first: at the first one's places,
// with its split over the same ranks, and a KV cache whose pages have the numbers of the first
// one's, and a few of its own.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/split.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/rank_places.h"
#include "engine/model/model.h"
#include "engine/placement/machine.h"
#include "engine/placement/rank_device.h"
#include "engine/placement/settings.h"
#include "engine/planner/planner.h"

namespace lockstep {

// The places of a model, as far as its draft follows them.
struct ModelPlaces {
  const DeviceChoice& devices;
  const std::vector<RankPlace>& places;
  const PlanOptions& options;
  bool gpus_linked = true;
};

// The pages of a model's cache.
struct CachePages {
  size_t all = 0;
  size_t of_sequence = 0;  // at most; 0: any number of them (PlanOptions::sequence_pages)
};

struct DraftLayout {
  const Model* model = nullptr;
  Split split;
  PlanOptions plan_options;
  // Pages of its own behind those of the model: one for each sequence, for drafted tokens behind
  // the end of the sequence's last page.
  size_t own_pages = 0;
  bool gpus_linked = true;       // as the model's
  std::vector<RankSizes> sizes;  // by rank
};

// How to do without drafts by another model, whatever the options say: what they name by
// `speculate` has to be there.
inline constexpr std::string_view kOtherDrafter = "another drafter, as --speculate ngram";

// Whether one model can draft for the other with its cache's pages: both generate and keep no
// states, and pages of both keep all tokens: of the model those of a layer that sees all, of the
// draft those of all layers (Graph::keep_all_keys()). A model whose hidden rows the other reads may
// keep states. Fails with kInvalidInput that names what is the matter and with which of the two.
Result<void> check_draft_models(const Model& model, const Model& draft);

// The layout of the settings' draft model at the model's places; it has no cache yet. Fails with
// kInvalidInput where the devices cannot compute the draft, or it cannot be split over as many
// ranks by this strategy.
Result<DraftLayout> lay_out_draft(const Settings& settings, const Machine& machine,
                                  const ModelPlaces& model, Strategy strategy);

// The sizes of every rank with a cache beside a model's of these pages.
std::vector<RankSizes> draft_sizes(const DraftLayout& draft, const CachePages& pages,
                                   std::span<const RankPlace> places);

// Makes them the layout's, with its cache's pages.
void set_draft_pages(DraftLayout& draft, const CachePages& pages,
                     std::span<const RankPlace> places);

}  // namespace lockstep
