// About the server itself: what it is, takes and answers, and how it is.
#include <string>

#include "engine/base/json.h"
#include "server/api/native/endpoints.h"
#include "server/api/native/openapi_text.h"
#include "server/api/openai/endpoints.h"
#include "server/options/version.h"

namespace lockstep {

// GET /version and /openapi.json. openapi.json says it; the bounds that options and the model set
// are put in here.
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
  if (limits.slot_count > 0) schemas["SlotId"]["maximum"] = limits.slot_count - 1;
  schemas["TokenId"]["maximum"] = limits.vocabulary_size - 1;
  const uint32_t width = model.engine().model().embedding_width;
  schemas["EmbeddingWidth"]["minimum"] = width;
  schemas["EmbeddingWidth"]["maximum"] = width;
  call.response.send(200, "application/json", to_text(*document));
  return {};
}

// GET /health/live: the engine moves whenever it has work (while loading it has none); 503 says
// that a restart is what helps, which it sees to by itself once it has failed. GET /health/ready
// and /health: requests are taken and will be answered; until the model is loaded, from SIGTERM on,
// and while a pass takes suspiciously long, 503 with the reason and the load's progress.
ApiResult<void> get_live(Call& call) {
  const EngineHealth health = call.model.health();
  const bool alive = health != EngineHealth::kStalled && health != EngineHealth::kFailed;
  const char* const status = alive                             ? "alive"
                             : health == EngineHealth::kFailed ? "failed"
                                                               : "stalled";
  call.response.send(alive ? 200 : 503, "application/json", to_text({{"status", status}}));
  return {};
}

// Not ready is an answer of its own: the error with the load's progress beside it.
ApiResult<void> get_ready(Call& call) {
  const auto unready = call.model.check_health();
  if (!unready) {
    call.response.send(200, "application/json", to_text({{"status", "ready"}}));
    return {};
  }
  const LoadProgress progress = call.model.engine().statistics().load;
  Json body = {{"status", unready->code.value_or("")},
               {"bytes_done", progress.bytes_done},
               {"bytes_total", progress.bytes_total},
               {"seconds", progress.seconds},
               {"bytes_per_second", progress.bytes_per_second()}};
  body.update(error_object(*unready));
  if (unready->retry_after_seconds) {
    call.response.set_header("Retry-After", std::to_string(*unready->retry_after_seconds));
  }
  call.response.send(unready->status, "application/json", to_text(body));
  return {};
}

}  // namespace lockstep
