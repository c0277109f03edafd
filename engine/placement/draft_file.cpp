#include "engine/placement/draft_file.h"

#include <string>
#include <utility>

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
Result<std::unique_ptr<DraftFile>> open_block(const EngineOptions& options, const GgufFile& file,
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
  if (auto fits = check_draft_models(model, *built); !fits) return refuse(fits.error().message, "");
  return std::unique_ptr<DraftFile>(new DraftFile{std::move(*opened), std::move(*built)});
}

}  // namespace

Result<std::unique_ptr<DraftFile>> open_draft_file(const EngineOptions& options,
                                                   const Settings& settings, const GgufFile& file,
                                                   const Model& model) {
  if (settings.drafts && settings.drafters.block) return open_block(options, file, model);
  if (options.draft_model.empty()) return nullptr;
  if (!settings.drafts || !settings.drafters.model) {
    spdlog::info("the draft model {} is not loaded: speculate is {}, draft-tokens {}",
                 options.draft_model.string(), options.speculate,
                 options.draft_tokens ? std::to_string(*options.draft_tokens) : "auto");
    return nullptr;
  }
  if (options.hosts.is_group()) {
    return invalid_input(
        "draft-model is {}, and several hosts compute together: they draft by no model. Leave "
        "--draft-model out",
        options.draft_model.string());
  }
  auto opened = GgufFile::open(options.draft_model);
  if (!opened) return std::unexpected(opened.error());
  const auto with_file = [&](const Error& error) {
    const std::string prefix = options.draft_model.string() + ": ";
    const bool named = error.message.starts_with(prefix);
    return std::unexpected(Error{error.kind, (named ? "" : prefix) + error.message});
  };
  auto built = build_model({.file = *opened, .context_tokens = options.context_tokens});
  if (!built) return with_file(built.error());
  if (auto same = check_tokens(file, *opened); !same) return with_file(same.error());
  if (auto fits = check_draft_models(model, *built); !fits) return with_file(fits.error());
  return std::unique_ptr<DraftFile>(new DraftFile{std::move(*opened), std::move(*built)});
}

}  // namespace lockstep
