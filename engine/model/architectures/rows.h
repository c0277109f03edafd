// The entry points of the architectures' files, for the table in architecture.cpp.
#pragma once

#include "engine/model/architecture.h"

namespace lockstep {

Result<Model> build_llama(const GgufFile& file);
Result<Model> build_qwen2(const GgufFile& file);
Result<Model> build_qwen3(const GgufFile& file);
Result<Model> build_qwen3moe(const GgufFile& file);

}  // namespace lockstep
