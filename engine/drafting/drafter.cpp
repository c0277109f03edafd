#include "engine/drafting/drafter.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <string>

namespace lockstep {
namespace {

constexpr std::array kRows = {DrafterRow{"ngram", make_ngram_drafter, /*repeats_answers=*/true}};

constexpr std::array kStages = {kBlockDrafter, kModelDrafter, kEagleDrafter};

std::unexpected<Error> no_drafter(std::string_view name) {
  std::string names = "auto, none";
  for (const DrafterRow& row : kRows) names.append(", ").append(row.name);
  return invalid_input("there is no drafter \"{}\"; there are {}, {}, {} and {}", name, names,
                       kBlockDrafter, kModelDrafter, kEagleDrafter);
}

// Chooses one of a kind, of which one is chosen at most.
template <typename Kind>
Result<void> choose(Kind& chosen, const Kind& kind, std::string_view chosen_name,
                    std::string_view name) {
  if (!chosen_name.empty() && chosen_name != name) {
    return invalid_input("drafters {} and {} exclude one another; name one of them", chosen_name,
                         name);
  }
  chosen = kind;
  return {};
}

Result<void> add_drafter(std::string_view name, DrafterChoice& choice) {
  const auto stage = std::ranges::find(kStages, name);
  if (stage != kStages.end()) return choose(choice.stage, *stage, choice.stage, name);
  const auto row = std::ranges::find(kRows, name, &DrafterRow::name);
  if (row == kRows.end()) return no_drafter(name);
  const std::string_view chosen = choice.row != nullptr ? choice.row->name : "";
  return choose<const DrafterRow*>(choice.row, &*row, chosen, name);
}

}  // namespace

std::span<const DrafterRow> drafter_rows() {
  return kRows;
}

std::string_view DrafterChoice::name_of(DraftSource source) const {
  switch (source) {
    case DraftSource::kDrafter:
      return row != nullptr ? row->name : "none";
    case DraftSource::kGrammar:
      return "grammar";
    case DraftSource::kModel:
      return stage.empty() ? kModelDrafter : stage;
    case DraftSource::kAnswers:
      return "answers";
  }
  return "";
}

Result<DrafterChoice> choose_drafters(std::string_view names, bool has_file) {
  if (names == "none") return DrafterChoice();
  if (names == "auto") {
    return DrafterChoice{&kRows.front(), has_file ? kModelDrafter : "", has_file};
  }
  DrafterChoice choice;
  for (const auto part : std::views::split(names, ',')) {
    auto added = add_drafter({part.begin(), part.end()}, choice);
    if (!added) return std::unexpected(added.error());
  }
  choice.has_file = has_file && !choice.stage.empty();
  const bool needs_file = choice.stage == kModelDrafter || choice.stage == kEagleDrafter;
  if (needs_file && !has_file) {
    return invalid_input(
        "tokens are to be drafted by {} (speculate {}), and its file is not given; use "
        "--draft-model FILE",
        choice.stage == kModelDrafter ? "a smaller model" : "EAGLE-3", names);
  }
  return choice;
}

}  // namespace lockstep
