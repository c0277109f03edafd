// GET /v1/models and /v1/models/:id.
#include "engine/base/json.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

Json model_object(const ServedModel& model, const std::string& name) {
  const ModelInfo& info = model.engine().model();
  const Json pooling = info.pooling.empty() ? Json(nullptr) : Json(info.pooling);
  return {{"id", name},
          {"object", "model"},
          {"created", info.file_seconds},
          {"owned_by", "lockstep"},
          {"root", info.name},
          {"parent", nullptr},
          {"max_model_len", info.context_tokens},
          {"meta",
           {{"architecture", info.architecture},
            {"format", info.format},
            {"n_params", info.parameter_count},
            {"n_vocab", info.vocabulary_size},
            {"n_embd", info.embedding_width},
            {"pooling", pooling},
            {"n_ctx_train", info.trained_context_tokens},
            {"size_bytes", info.file_bytes}}}};
}

}  // namespace

ApiResult<void> get_models(Call& call) {
  Json list = Json::array();
  for (const std::string& name : call.model.names()) list.push_back(model_object(call.model, name));
  const Json body = {{"object", "list"}, {"data", std::move(list)}};
  call.response.send(200, "application/json", to_text(body));
  return {};
}

ApiResult<void> get_model(Call& call) {
  const auto name = call.request.path_parameters.find("id");
  const std::string asked = name == call.request.path_parameters.end() ? "" : name->second;
  if (auto unknown = call.model.check_name(asked)) return std::unexpected(std::move(*unknown));
  call.response.send(200, "application/json", to_text(model_object(call.model, asked)));
  return {};
}

}  // namespace lockstep
