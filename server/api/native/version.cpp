// GET /version.
#include "server/options/version.h"

#include "engine/base/json_text.h"
#include "server/api/native/endpoints.h"

namespace lockstep {

ApiResult<void> get_version(Call& call) {
  const Json body = {{"version", kVersion},
                     {"system_fingerprint", call.model.engine().model().fingerprint}};
  call.response.send(200, "application/json", to_text(body));
  return {};
}

}  // namespace lockstep
