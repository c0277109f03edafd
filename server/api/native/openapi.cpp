// GET /openapi.json: what this server takes and answers. openapi.json says it; the bounds that
// options and the model set are put in here.
#include "server/api/endpoints.h"
#include "server/api/native/openapi_text.h"
#include "server/options/version.h"

namespace lockstep {

void get_openapi(ServedModel& model, const HttpRequest&, HttpResponse& response) {
  auto document = parse_json(kOpenApiText);
  if (!document) return send_error(response, server_error(document.error().message));
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
  response.send(200, "application/json", to_text(*document));
}

}  // namespace lockstep
