#include "engine/model/load_extents.h"

#include <algorithm>
#include <tuple>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/base/range.h"

namespace lockstep {
namespace {

// The range of a slice among the units of its weight.
Range units_of(const Weight& weight, const WeightSlice& slice) {
  if (slice.column_begin >= slice.column_end) return {};
  if (weight.is_matrix) return {slice.row_begin, std::max(slice.row_begin, slice.row_end)};
  if (slice.row_begin >= slice.row_end) return {};
  const size_t block = traits(weight.format).block_elements;
  return {slice.column_begin / block, slice.column_end / block};
}

struct Owner {
  size_t rank = 0;
  const WeightSlice* slice = nullptr;
  Range units;
  bool whole_panels = false;
};

// Whether a border of `other` lies within a panel of `owner`.
bool cuts_panels(const Owner& owner, const Owner& other) {
  const auto cuts = [&units = owner.units](size_t border) {
    return units.begin < border && border < units.end && (border - units.begin) % kPanelRows != 0;
  };
  return owner.whole_panels && (cuts(other.units.begin) || cuts(other.units.end));
}

// Owners that can have extents in common, together.
std::vector<std::vector<Owner>> group(const std::vector<Owner>& owners) {
  std::vector<std::vector<Owner>> groups;
  for (const Owner& owner : owners) {
    const auto fits = [&owner](const std::vector<Owner>& others) {
      return std::ranges::none_of(others, [&owner](const Owner& other) {
        return cuts_panels(owner, other) || cuts_panels(other, owner);
      });
    };
    const auto found = std::ranges::find_if(groups, fits);
    if (found != groups.end()) {
      found->push_back(owner);
    } else {
      groups.push_back({owner});
    }
  }
  return groups;
}

class Cutter {
 public:
  Cutter(const GgufFile& file, const Graph& graph, std::span<const RankToLoad> ranks,
         size_t extent_bytes)
      : file_(file), graph_(graph), extent_bytes_(extent_bytes) {
    extents_.by_rank.resize(ranks.size());
    alone_bytes_.resize(ranks.size());
    owners_.resize(graph.weights().size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const WeightSlice& slice : ranks[rank].plan->weights) {
        const Weight& weight = graph.weights()[slice.weight];
        const Range units = units_of(weight, slice);
        if (units.size() == 0) continue;
        owners_[slice.weight].push_back(
            {rank, &slice, units, ranks[rank].whole_panels && weight.is_matrix});
      }
    }
  }

  LoadExtents cut() {
    for (WeightId weight = 0; weight < graph_.weights().size(); ++weight) {
      for (const std::vector<Owner>& owners : group(owners_[weight])) cut_weight(weight, owners);
    }
    share_out();
    for (auto& extents : extents_.by_rank) {
      std::ranges::sort(extents, {}, [](const LoadExtent& extent) {
        return std::tuple(extent.part, extent.offset);
      });
    }
    return std::move(extents_);
  }

 private:
  struct Shared {
    LoadExtent extent;
    std::vector<size_t> ranks;
  };

  // Between two neighbouring boundaries of slices, all units have the same owners.
  void cut_weight(WeightId id, const std::vector<Owner>& owners) {
    std::vector<size_t> boundaries;
    for (const Owner& owner : owners) {
      boundaries.push_back(owner.units.begin);
      boundaries.push_back(owner.units.end);
    }
    std::ranges::sort(boundaries);
    const auto repeated = std::ranges::unique(boundaries);
    boundaries.erase(repeated.begin(), repeated.end());
    for (size_t index = 0; index + 1 < boundaries.size(); ++index) {
      const Range units = {boundaries[index], boundaries[index + 1]};
      std::vector<Owner> here;
      for (const Owner& owner : owners) {
        if (owner.units.begin <= units.begin && units.end <= owner.units.end) here.push_back(owner);
      }
      if (!here.empty()) cut_run(id, units, here);
    }
  }

  // Into parts of about equal size, at the panels of a GPU that is among the owners; else, where
  // that can be, at the first owner's.
  void cut_run(WeightId id, Range units, const std::vector<Owner>& owners) {
    const Weight& weight = graph_.weights()[id];
    const size_t unit_bytes = load_unit_bytes(weight);
    const auto whole = std::ranges::find_if(owners, &Owner::whole_panels);
    const Owner& aligned = whole != owners.end() ? *whole : owners.front();
    const size_t units_max =
        std::max(aligned.whole_panels ? kPanelRows : size_t{1}, extent_bytes_ / unit_bytes);
    const size_t parts = (units.size() + units_max - 1) / units_max;
    size_t step = (units.size() + parts - 1) / parts;
    const size_t rounded = round_up(step, kPanelRows);
    const bool by_panels = units_max >= kPanelRows;
    if (by_panels) step = rounded <= units_max ? rounded : units_max / kPanelRows * kPanelRows;
    size_t begin = units.begin;
    while (begin < units.end) {
      size_t end = begin + step;
      // Back onto a border of panels, from wherever the run has begun.
      if (by_panels) end -= (end - aligned.units.begin) % kPanelRows;
      end = std::min(end, units.end);
      add(id, {begin, end}, owners);
      begin = end;
    }
  }

  void add(WeightId id, Range units, const std::vector<Owner>& owners) {
    const Weight& weight = graph_.weights()[id];
    const GgufTensor* tensor = file_.find_tensor(weight.name);
    CHECK(tensor != nullptr, "the graph has a weight {} that the file lacks", weight.name);
    const size_t unit_bytes = load_unit_bytes(weight);
    LoadExtent extent = {.weight = id,
                         .part = tensor->part,
                         .offset = tensor->offset + (weight.first_row + units.begin) * unit_bytes,
                         .bytes = units.size() * unit_bytes,
                         .begin = units.begin,
                         .end = units.end};
    extents_.bytes += extent.bytes;
    std::vector<size_t> ranks;
    for (const Owner& owner : owners) {
      extent.owners.push_back({owner.rank, owner.slice});
      if (ranks.empty() || ranks.back() != owner.rank) ranks.push_back(owner.rank);
    }
    if (ranks.size() > 1) {
      shared_.push_back({std::move(extent), std::move(ranks)});
      return;
    }
    alone_bytes_[ranks.front()] += extent.bytes;
    extents_.by_rank[ranks.front()].push_back(std::move(extent));
  }

  // A rank's share of the reading follows what it holds alone.
  void share_out() {
    std::vector<uint64_t> bytes = alone_bytes_;
    const auto load = [&](size_t rank) {
      return (static_cast<double>(bytes[rank]) + 1) / (static_cast<double>(alone_bytes_[rank]) + 1);
    };
    for (Shared& shared : shared_) {
      const size_t rank = *std::ranges::min_element(shared.ranks, {}, load);
      bytes[rank] += shared.extent.bytes;
      extents_.by_rank[rank].push_back(std::move(shared.extent));
    }
  }

  const GgufFile& file_;
  const Graph& graph_;
  size_t extent_bytes_;
  std::vector<std::vector<Owner>> owners_;  // by weight
  LoadExtents extents_;
  std::vector<Shared> shared_;
  std::vector<uint64_t> alone_bytes_;  // by rank
};

}  // namespace

size_t load_unit_bytes(const Weight& weight) {
  return weight.is_matrix ? row_bytes(weight.format, weight.columns)
                          : traits(weight.format).block_bytes;
}

LoadExtents cut_extents(const GgufFile& file, const Graph& graph, std::span<const RankToLoad> ranks,
                        size_t extent_bytes) {
  return Cutter(file, graph, ranks, extent_bytes).cut();
}

}  // namespace lockstep
