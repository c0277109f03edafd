#include "engine/drafting/drafter.h"

#include <algorithm>
#include <array>
#include <string>

namespace lockstep {
namespace {

constexpr std::array kRows = {DrafterRow{"ngram", make_ngram_drafter}};

}  // namespace

std::span<const DrafterRow> drafter_rows() {
  return kRows;
}

Result<const DrafterRow*> choose_drafter(std::string_view name) {
  if (name == "none") return nullptr;
  if (name == "auto") return &kRows.front();
  const auto found = std::ranges::find(kRows, name, &DrafterRow::name);
  if (found != kRows.end()) return &*found;
  std::string names = "auto, none";
  for (const DrafterRow& row : kRows) names.append(", ").append(row.name);
  return invalid_input("there is no drafter \"{}\"; there are {}", name, names);
}

}  // namespace lockstep
