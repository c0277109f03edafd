// The end of models that rank texts, or embed them, instead of generating.
#pragma once

#include <optional>
#include <string>

#include "engine/base/result.h"
#include "engine/kernels/activation_function.h"
#include "engine/model/architectures/model_tensors.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"

namespace lockstep {

// kScores where <architecture>.pooling_type is 4 (rank), or is missing and the file has a head;
// else `otherwise`. kInvalidInput for an encoder that ranks and has no head.
Result<ModelOutput> read_output(const GgufFile& file, const std::string& architecture,
                                ModelOutput otherwise);

struct RankingHeadTraits {
  std::optional<ActivationFunction> activation = std::nullopt;  // of cls * x; none: tanh
  float norm_epsilon = 0;  // of cls.norm, a layer norm behind the activation; 0: there is none
};

// The head's scores, one for each of its classes: cls.output * activation(cls * x), of which the
// file may lack either. `x`: the last norm's rows. What it returns after an error in `tensors` is
// of no use.
ValueId add_ranking_head(const GgufFile& file, ModelTensors& tensors, Graph& graph, ValueId x,
                         const RankingHeadTraits& traits = {});

}  // namespace lockstep
