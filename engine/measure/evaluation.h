// Evaluates models: see interface/evaluation.h.
#pragma once

#include <span>

#include "engine/base/result.h"
#include "engine/interface/evaluation.h"
#include "engine/interface/logit_source.h"

namespace lockstep {

// How well `model` predicts the text `tokens` and, with a reference, how far its predictions are
// from the reference's; for `lockstepd evaluate`. Both are loaded and idle, with a context of at
// least options.context_tokens. Fails as check_evaluation() and LogitSource::compute_logits() do,
// and with kMachineRefused for a model whose output holds no usable numbers.
Result<Evaluation> evaluate(LogitSource& model, LogitSource* reference,
                            std::span<const TokenId> tokens, const EvaluationOptions& options);

// Whether that can be done, before anything is loaded: kInvalidInput for a text that is too short
// and for vocabularies that differ.
Result<void> check_evaluation(const LogitSource& model, const LogitSource* reference,
                              std::span<const TokenId> tokens, const EvaluationOptions& options);

}  // namespace lockstep
