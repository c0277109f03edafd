// GET /version.
#include "server/options/version.h"

#include "server/api/endpoints.h"

namespace lockstep {

void get_version(ServedModel& model, const HttpRequest&, HttpResponse& response) {
  const Json body = {{"version", kVersion},
                     {"system_fingerprint", model.engine().model().fingerprint}};
  response.send(200, "application/json", to_text(body));
}

}  // namespace lockstep
