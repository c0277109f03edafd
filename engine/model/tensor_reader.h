// The values of one small tensor, for what is needed before the load (rotary factors).
#pragma once

#include <vector>

#include "engine/base/result.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// Reads and dequantizes a whole tensor of an open file. Fails with kInvalidInput for one of more
// than a million elements, with kMachineRefused where the file cannot be read.
Result<std::vector<float>> read_tensor(const GgufFile& file, const GgufTensor& tensor);

}  // namespace lockstep
