// The steps before the engine knows of a request: in turns with other clients, below the engine's
// workers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "engine/base/json.h"
#include "server/api/common/call.h"

namespace lockstep {

// The body of a request that can be served now, as an object: 503 while the model takes none, and
// what parse_body() refuses. Within prepare_request() alone.
ApiResult<Json> read_body(const ServedModel& model, const HttpRequest& request);

// Whether an error is the server's fault, or due to its state: its key is charged nothing then.
inline bool is_servers_own(const ApiError& error) {
  constexpr int kFirstStatus = 500;
  return error.status >= kFirstStatus;
}

// The result of make(model, request), which parses the body and makes of it whatever its endpoint
// needs; all other values that it makes are gone when it returns (Preparation::run()). Where it
// fails for a reason of the server's own, nothing is charged to the key; else the steps that it
// took are, whatever becomes of the request.
template <typename Make>
auto prepare_request(Call& call, const Make& make) {
  std::optional<std::invoke_result_t<const Make&, const ServedModel&, const HttpRequest&>> result;
  const uint64_t steps =
      call.model.preparation().run(call.request.tenant, call.request.body.size(),
                                   [&] { result.emplace(make(call.model, call.request)); });
  if (!*result && is_servers_own(result->error())) {
    call.key.set_used_tokens(0);
  } else {
    call.key.charge_steps(steps);
  }
  return std::move(*result);
}

// Answers with this JSON text. The key's lease ends before the answer is sent.
ApiResult<void> give(Call& call, ApiResult<std::string> text);

// Answers with the JSON text that make() gives, as give() does; the engine is not asked.
ApiResult<void> answer_prepared(Call& call,
                                ApiResult<std::string> (*make)(const ServedModel& model,
                                                               const HttpRequest& request));

}  // namespace lockstep
