#include "engine/placement/draft_file.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/model/architecture.h"
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
  constexpr std::string_view kAnother = ". Use another drafter, as --speculate ngram";
  if (options.hosts.is_group()) return refuse("several hosts compute together", kAnother);
  auto opened = GgufFile::open(file.parts().front());
  if (!opened) return std::unexpected(opened.error());
  auto built =
      build_predicting_block({.file = *opened, .context_tokens = options.context_tokens}, 0);
  if (!built) return refuse(built.error().message, kAnother);
  built->graph.keep_all_keys();
  if (auto fits = check_draft_models(model, *built); !fits) return refuse(fits.error().message, "");
  return DraftFile{std::move(*opened), std::move(*built)};
}

// Whether the model has the rows that the draft is given.
Result<void> check_given_rows(const Model& model, const Model& draft) {
  const std::vector<size_t>& layers = draft.given.layers;
  for (const size_t layer : layers) {
    if (layer < model.layer_inputs.size()) continue;
    return invalid_input(
        "it reads rows of layer {}, and the model ({}) has {} layers: it was made for another "
        "model. Use the one that was made for this model, or leave --draft-model out",
        layer, model.architecture, model.layer_count);
  }
  if (layers.empty()) return {};
  const size_t columns = model.graph.columns(model.layer_inputs.front());
  if (draft.given.own_begin == layers.size() * columns) return {};
  return invalid_input(
      "it reads rows of {} columns, and those of the model ({}) have {}: it was made for another "
      "model. Use the one that was made for this model, or leave --draft-model out",
      draft.given.own_begin / layers.size(), model.architecture, columns);
}

Result<Model> build_draft(const EngineOptions& options, const GgufFile& file, const Model& model,
                          GgufFile& draft) {
  const bool reads_rows = drafts_for_another(draft);
  if (options.speculate.ends_with(kEagleDrafter) && !reads_rows) {
    return invalid_input(
        "it is no EAGLE-3 file (speculate {}), but a model of architecture {}. Use an eagle3 file, "
        "or --speculate draft",
        options.speculate, draft.text("general.architecture")->value_or(""));
  }
  if (auto same = check_tokens(file, draft); !same) return std::unexpected(same.error());
  if (reads_rows) {
    if (auto lent = borrow_shared_tensors(file, draft); !lent) return std::unexpected(lent.error());
  }
  const ModelSource source = {.file = draft, .context_tokens = options.context_tokens};
  auto built = reads_rows ? build_drafting_model(source) : build_model(source);
  if (!built) return built;
  built->graph.keep_all_keys();
  if (auto has = check_given_rows(model, *built); !has) return std::unexpected(has.error());
  if (auto fits = check_draft_models(model, *built); !fits) return std::unexpected(fits.error());
  return built;
}

Result<DraftFile> open_file(const EngineOptions& options, const GgufFile& file,
                            const Model& model) {
  if (options.hosts.is_group()) {
    return invalid_input(
        "draft-model is {}, and several hosts compute together: they draft by no model. Leave "
        "--draft-model out",
        options.draft_model.string());
  }
  auto opened = GgufFile::open(options.draft_model);
  if (!opened) return std::unexpected(opened.error());
  auto built = build_draft(options, file, model, *opened);
  if (built) return DraftFile{std::move(*opened), std::move(*built)};
  const Error& error = built.error();
  const std::string prefix = options.draft_model.string() + ": ";
  const bool named = error.message.starts_with(prefix);
  return std::unexpected(Error{error.kind, (named ? "" : prefix) + error.message});
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
  if (!options.draft_model.empty() && !(drafts && drafters.has_file())) {
    spdlog::info("the draft model {} is not loaded: speculate is {}, draft-tokens {}",
                 options.draft_model.string(), options.speculate,
                 options.draft_tokens ? std::to_string(*options.draft_tokens) : "auto");
  }
  if (!drafts) return nullptr;
  auto opened =
      drafters.has_file() ? open_file(options, file, model) : open_block(options, file, model);
  if (!opened) return std::unexpected(opened.error());
  auto draft = std::make_unique<DraftFile>(std::move(*opened));
  for (const size_t layer : draft->model.given.layers) model.graph.keep(model.layer_inputs[layer]);
  settings.drafters.stage = drafter_name(draft->model);
  settings.draft_model = &draft->model;
  return draft;
}

}  // namespace lockstep
