#include "engine/placement/draft_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/model/architecture.h"
#include "engine/model/given_rows.h"
#include "engine/placement/draft_layout.h"
#include "engine/text/model_tokenizer.h"
#include "engine/text/same_vocabulary.h"

namespace lockstep {
namespace {

Result<void> check_tokens(const GgufFile& file, const GgufFile& draft) {
  const auto own = read_tokenizer_data(file);
  if (!own) return std::unexpected(own.error());
  const auto drafts = read_tokenizer_data(draft);
  if (!drafts) return std::unexpected(drafts.error());
  return check_same_vocabulary(*own, *drafts);
}

// A block of the model's own file, which is opened once more.
Result<DraftFile> open_block(const EngineOptions& options, const GgufFile& file,
                             const Model& model) {
  const auto refuse = [&](const std::string& reason, std::string_view remedy) {
    return invalid_input("a block of the model is to draft (speculate {}), but {}{}",
                         options.speculate, reason, remedy);
  };
  auto opened = GgufFile::open(file.parts().front());
  if (!opened) return std::unexpected(opened.error());
  auto built =
      build_predicting_block({.file = *opened, .context_tokens = options.context_tokens}, 0);
  if (!built) return refuse(built.error().message, fmt::format(". Use {}", kOtherDrafter));
  built->graph.keep_all_keys();
  if (auto fits = check_draft_models(model, *built); !fits) return refuse(fits.error().message, "");
  return DraftFile{std::move(*opened), std::move(*built)};
}

// Whether the file is what the drafter's name asks for, if it asks for files of one kind.
Result<void> check_kind(const EngineOptions& options, const GgufFile& draft,
                        std::string_view kind) {
  const auto is_other = [&](std::string_view name) {
    return options.speculate.ends_with(name) && kind != name;
  };
  const std::string architecture = draft.text("general.architecture")->value_or("");
  if (is_other(kEagleDrafter)) {
    return invalid_input(
        "it is no EAGLE-3 file (speculate {}), but one of architecture {}. Use an eagle3 file, or "
        "--speculate draft",
        options.speculate, architecture);
  }
  if (is_other(kBlockDrafter)) {
    return invalid_input(
        "it is no gemma4-assistant file (speculate {}), but one of architecture {}. Leave "
        "--draft-model out, for a block of the model's own file, or use --speculate draft",
        options.speculate, architecture);
  }
  return {};
}

// The model keeps the rows that the draft is given.
Result<Model> build_draft(const EngineOptions& options, const GgufFile& file, Model& model,
                          GgufFile& draft) {
  const bool reads_rows = drafts_for_another(draft);
  if (!reads_rows) {
    if (auto meant = check_kind(options, draft, kModelDrafter); !meant) {
      return std::unexpected(meant.error());
    }
  }
  if (auto same = check_tokens(file, draft); !same) return std::unexpected(same.error());
  if (reads_rows) {
    if (auto lent = borrow_shared_tensors(file, draft); !lent) return std::unexpected(lent.error());
  }
  const ModelSource source = {.file = draft, .context_tokens = options.context_tokens};
  auto built = reads_rows ? build_drafting_model(source) : build_model(source);
  if (!built) return built;
  if (auto meant = check_kind(options, draft, drafter_name(*built)); !meant) {
    return std::unexpected(meant.error());
  }
  built->graph.keep_all_keys();
  const auto given = given_values(model, *built);
  if (!given) return std::unexpected(given.error());
  if (auto fits = check_draft_models(model, *built); !fits) return std::unexpected(fits.error());
  for (const ValueId value : *given) model.graph.keep(value);
  return built;
}

// As build_draft(), whose failure names the file.
Result<Model> build_named(const EngineOptions& options, const GgufFile& file, Model& model,
                          GgufFile& draft) {
  auto built = build_draft(options, file, model, draft);
  if (built) return built;
  const Error& error = built.error();
  const std::string prefix = options.draft_model.string() + ": ";
  const bool named = error.message.starts_with(prefix);
  return std::unexpected(Error{error.kind, (named ? "" : prefix) + error.message});
}

Result<DraftFile> open_file(const EngineOptions& options, const GgufFile& file, Model& model) {
  auto opened = GgufFile::open(options.draft_model);
  if (!opened) return std::unexpected(opened.error());
  auto built = build_named(options, file, model, *opened);
  if (!built) return std::unexpected(built.error());
  return DraftFile{std::move(*opened), std::move(*built)};
}

// On a host that follows: nothing is drafted here, and the model keeps the rows that are read where
// the hosts are led. A smaller model's file, which reads none, is wanted there alone.
Result<void> keep_rows_for_leader(const EngineOptions& options, const GgufFile& file,
                                  Settings& settings, Model& model) {
  const bool has_file = settings.drafters.has_file;
  settings.drafters.stage = {};
  spdlog::info("tokens are drafted where the hosts are led; what drafts is not loaded here");
  if (!has_file) return {};
  std::error_code error;
  if (!std::filesystem::exists(options.draft_model, error)) {
    spdlog::info(
        "the draft model {} is not here: it has to be where it reads rows of the model's "
        "layers, as those of EAGLE-3 and gemma4-assistant do",
        options.draft_model.string());
    return {};
  }
  auto draft = GgufFile::open(options.draft_model);
  if (!draft) return std::unexpected(draft.error());
  if (!drafts_for_another(*draft)) return {};
  auto built = build_named(options, file, model, *draft);
  if (!built) return std::unexpected(built.error());
  return {};
}

}  // namespace

std::string_view drafter_name(const Model& draft) {
  if (draft.graph.given_columns() == 0) return kModelDrafter;
  return draft.given.layers.empty() ? kBlockDrafter : kEagleDrafter;
}

Result<std::unique_ptr<DraftFile>> open_draft_file(const EngineOptions& options,
                                                   const GgufFile& file, Settings& settings,
                                                   Model& model) {
  const DrafterChoice& drafters = settings.drafters;
  const bool drafts = settings.drafts && !drafters.stage.empty();
  if (!options.draft_model.empty() && !(drafts && drafters.has_file)) {
    spdlog::info("the draft model {} is not loaded: speculate is {}, draft-tokens {}",
                 options.draft_model.string(), options.speculate,
                 options.draft_tokens ? std::to_string(*options.draft_tokens) : "auto");
  }
  if (!drafts) return nullptr;
  if (!options.hosts.leads()) {
    auto kept = keep_rows_for_leader(options, file, settings, model);
    if (!kept) return std::unexpected(kept.error());
    return nullptr;
  }
  auto opened =
      drafters.has_file ? open_file(options, file, model) : open_block(options, file, model);
  if (!opened) return std::unexpected(opened.error());
  auto draft = std::make_unique<DraftFile>(std::move(*opened));
  settings.drafters.stage = drafter_name(draft->model);
  settings.draft_model = &draft->model;
  return draft;
}

}  // namespace lockstep
