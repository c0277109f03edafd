// GET /version and /openapi.json: what this server is, takes and answers. openapi.json says it; the
// bounds that options and the model set are put in here.
#include "engine/base/json.h"
#include "server/api/native/endpoints.h"
#include "server/api/native/openapi_text.h"
#include "server/options/version.h"

namespace lockstep {

ApiResult<void> get_version(Call& call) {
  const Json body = {{"version", kVersion},
                     {"system_fingerprint", call.model.engine().model().fingerprint}};
  call.response.send(200, "application/json", to_text(body));
  return {};
}

ApiResult<void> get_openapi(Call& call) {
  const ServedModel& model = call.model;
  auto document = parse_json(kOpenApiText);
  if (!document) return std::unexpected(server_error(document.error().message));
  (*document)["info"]["version"] = kVersion;
  Json& schemas = (*document)["components"]["schemas"];
  if (model.takes_any_name()) {
    schemas["ModelName"]["maxLength"] = ServedModel::kNameBytesMax;
  } else {
    schemas["ModelName"]["enum"] = model.names();
  }
  const RequestLimits limits = model.limits();
  schemas["ChoiceCount"]["maximum"] = limits.choices_max;
  schemas["TokenId"]["maximum"] = limits.vocabulary_size - 1;
  const uint32_t width = model.engine().model().embedding_width;
  schemas["EmbeddingWidth"]["minimum"] = width;
  schemas["EmbeddingWidth"]["maximum"] = width;
  call.response.send(200, "application/json", to_text(*document));
  return {};
}

}  // namespace lockstep
