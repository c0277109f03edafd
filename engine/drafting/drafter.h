// Guesses of the tokens that a text goes on with, for a pass to verify: see docs/speculation.md. A
// kind of drafter is one file and one row of drafter.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "engine/base/result.h"
#include "engine/base/token_id.h"

namespace lockstep {

// Drafted tokens of one sequence in a pass at most.
inline constexpr size_t kDraftTokensMost = 15;

// Sources of drafts, which are counted apart.
enum class DraftSource : uint8_t {
  kDrafter,  // the request's drafter
  kGrammar,  // a text that its grammar leaves no other for
  kModel,    // a model that runs passes of its own: DrafterChoice::stage
  kAnswers,  // an earlier answer of the tenant (earlier_answers.h)
};
inline constexpr size_t kDraftSourceCount = 4;

// Drafts of one generation. Belongs to one thread.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // The text may repeat these tokens, which its client has predicted. In pieces, all of them before
  // the first add().
  virtual void expect(std::span<const TokenId> /*tokens*/) {}
  // The text goes on with these tokens: first the prompt, then what is generated.
  virtual void add(std::span<const TokenId> tokens) = 0;
  // Writes guesses of the tokens that follow the text, in their order, and returns how many of
  // them: 0, where it has no good guess. Any of them may be wrong; none is below 0.
  virtual size_t draft(std::span<TokenId> drafts) = 0;
  // How many of the text's last tokens stand before the last draft where that was found: the more,
  // the better a guess it is.
  virtual size_t match_length() const { return std::numeric_limits<size_t>::max(); }
};

// The kinds, each in a file of its own. `tokens`: how many it will be told soon, of prediction and
// prompt.
std::unique_ptr<Drafter> make_ngram_drafter(size_t tokens);

struct DrafterRow {
  std::string_view name;
  std::unique_ptr<Drafter> (*make)(size_t tokens);
  bool repeats_answers = false;  // a tenant's earlier ones are drafted from as well
};

// All kinds, in the order in which "auto" prefers them.
std::span<const DrafterRow> drafter_rows();

// Those that run passes of their own, for all requests at once, have no row: a smaller model, ...
inline constexpr std::string_view kModelDrafter = "draft";
// ... a block of the model itself, or one in a file of its own, ...
inline constexpr std::string_view kBlockDrafter = "mtp";
// ... and a layer in a file of its own that reads the model's rows.
inline constexpr std::string_view kEagleDrafter = "eagle3";
// A draft that repeats fewer tokens goes behind a model's: it is a matter of chance.
inline constexpr size_t kSureMatch = 8;

// The drafters that are asked.
struct DrafterChoice {
  const DrafterRow* row = nullptr;  // null: none
  // The one that runs passes of its own, by its name; empty: none.
  std::string_view stage = {};
  bool has_file = false;  // that one is in a file of its own, of the option draft-model

  // As drafts of this source are counted.
  std::string_view name_of(DraftSource source) const;
};

// Those of a list of names, as in "ngram,draft"; "auto": the first row, and what the file of the
// option draft-model has, if there is one; "none": none. `has_file`: there is one. Fails for any
// other name, for two rows or two stages, and for a stage that lacks its file.
Result<DrafterChoice> choose_drafters(std::string_view names, bool has_file);

}  // namespace lockstep
