// GET /health/live: the process answers. GET /health/ready and /health: the model serves; until it
// does, and from SIGTERM on, 503 with the reason and the load's progress.
#include "server/api/endpoints.h"

namespace lockstep {

void get_live(ServedModel&, const HttpRequest&, HttpResponse& response) {
  response.send(200, "application/json", to_text({{"status", "alive"}}));
}

void get_ready(ServedModel& model, const HttpRequest&, HttpResponse& response) {
  const auto unready = model.unready();
  if (!unready) {
    response.send(200, "application/json", to_text({{"status", "ready"}}));
    return;
  }
  const LoadProgress progress = model.engine().statistics().load;
  Json body = {{"status", unready->code.value_or("")},
               {"bytes_done", progress.bytes_done},
               {"bytes_total", progress.bytes_total},
               {"seconds", progress.seconds},
               {"bytes_per_second", progress.bytes_per_second()}};
  body.update(error_object(*unready));
  if (unready->retry_after_seconds) {
    response.set_header("Retry-After", std::to_string(*unready->retry_after_seconds));
  }
  response.send(unready->status, "application/json", to_text(body));
}

}  // namespace lockstep
