#include "engine/drafting/drafter.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <string>

namespace lockstep {
namespace {

constexpr std::array kRows = {DrafterRow{"ngram", make_ngram_drafter, /*repeats_answers=*/true}};

std::unexpected<Error> no_drafter(std::string_view name) {
  std::string names = "auto, none";
  for (const DrafterRow& row : kRows) names.append(", ").append(row.name);
  return invalid_input("there is no drafter \"{}\"; there are {}, {} and {}", name, names,
                       kBlockDrafter, kModelDrafter);
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
      return block ? kBlockDrafter : kModelDrafter;
    case DraftSource::kAnswers:
      return "answers";
  }
  return "";
}

Result<DrafterChoice> choose_drafters(std::string_view names, bool has_model) {
  if (names == "none") return DrafterChoice();
  if (names == "auto") return DrafterChoice{&kRows.front(), has_model};
  DrafterChoice choice;
  for (const auto part : std::views::split(names, ',')) {
    const std::string_view name(part.begin(), part.end());
    if (name == kModelDrafter) {
      if (!has_model) {
        return invalid_input(
            "tokens are to be drafted by a smaller model (speculate {}), and none is given; use "
            "--draft-model FILE",
            names);
      }
      choice.model = true;
      continue;
    }
    if (name == kBlockDrafter) {
      choice.block = true;
      continue;
    }
    const auto found = std::ranges::find(kRows, name, &DrafterRow::name);
    if (found == kRows.end()) return no_drafter(name);
    if (choice.row != nullptr && choice.row != &*found) {
      return invalid_input("drafters {} and {} exclude one another; name one of them",
                           choice.row->name, found->name);
    }
    choice.row = &*found;
  }
  if (choice.block && choice.model) {
    return invalid_input("drafters {} and {} exclude one another; name one of them", kBlockDrafter,
                         kModelDrafter);
  }
  return choice;
}

}  // namespace lockstep
