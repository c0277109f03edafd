// The end of models that rank texts, or embed them, instead of generating.
#pragma once

#include <string>

#include "engine/base/result.h"
#include "engine/model/architectures/model_tensors.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"

namespace lockstep {

// kScores where <architecture>.pooling_type is 4 (rank), or is missing and the file has a head;
// else `otherwise`. kInvalidInput for an encoder that ranks and has no head.
Result<ModelOutput> read_output(const GgufFile& file, const std::string& architecture,
                                ModelOutput otherwise);

// The head's scores, one for each of its classes: cls.output * tanh(cls * x), of which the file may
// lack either. `x`: the last norm's rows. What it returns after an error in `tensors` is of no use.
ValueId add_ranking_head(const GgufFile& file, ModelTensors& tensors, Graph& graph, ValueId x);

}  // namespace lockstep
