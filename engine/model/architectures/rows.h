// The entry points of the architectures' files, for the table in architecture.cpp.
#pragma once

#include "engine/base/result.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_baichuan(const ModelSource& source);
Result<Model> build_ernie4_5(const ModelSource& source);
Result<Model> build_exaone(const ModelSource& source);
Result<Model> build_internlm2(const ModelSource& source);
Result<Model> build_llama(const ModelSource& source);
Result<Model> build_maincoder(const ModelSource& source);
Result<Model> build_paddleocr(const ModelSource& source);
Result<Model> build_pangu_embedded(const ModelSource& source);
Result<Model> build_phi3(const ModelSource& source);
Result<Model> build_qwen2(const ModelSource& source);
Result<Model> build_qwen2vl(const ModelSource& source);
Result<Model> build_qwen3(const ModelSource& source);
Result<Model> build_qwen3moe(const ModelSource& source);
Result<Model> build_qwen3vl(const ModelSource& source);
Result<Model> build_qwen3vlmoe(const ModelSource& source);
Result<Model> build_seed_oss(const ModelSource& source);
Result<Model> build_smollm3(const ModelSource& source);
Result<Model> build_xverse(const ModelSource& source);

}  // namespace lockstep
