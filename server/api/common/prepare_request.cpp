#include "server/api/common/prepare_request.h"

#include <utility>

#include "server/api/common/json_fields.h"

namespace lockstep {

ApiResult<Json> read_body(const ServedModel& model, const HttpRequest& request) {
  if (auto unready = model.check_ready()) return std::unexpected(std::move(*unready));
  return parse_body(request);
}

ApiResult<void> give(Call& call, ApiResult<std::string> text) {
  if (!text && is_servers_own(text.error())) call.key.set_used_tokens(0);
  call.key.show(call.response);
  call.key.end();
  if (!text) return std::unexpected(std::move(text.error()));
  call.response.send(200, "application/json", std::move(*text));
  return {};
}

ApiResult<void> answer_prepared(Call& call,
                                ApiResult<std::string> (*make)(const ServedModel& model,
                                                               const HttpRequest& request)) {
  return give(call, prepare_request(call, make));
}

}  // namespace lockstep
