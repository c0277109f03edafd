// How endpoints prepare a request: in turns with other clients, below the engine's workers.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include "server/api/common/key_lease.h"
#include "server/api/common/served_model.h"
#include "server/http/http_request.h"
#include "server/http/peer_address.h"

namespace lockstep {

// Who shares with others what all requests have in common: the owner of the request's key; where
// there are no keys, the network that it comes from.
inline std::string client_of(const HttpRequest& request) {
  return request.principal.empty() ? network_of(request.remote_address) : request.principal;
}

// The result of make(), which parses the body and makes of it whatever its endpoint needs; all
// other values that it makes are gone when it returns (Preparation::run()). Where it fails for a
// reason of the server's own, nothing is charged to the lease.
template <typename Make>
std::invoke_result_t<Make> prepare_request(const ServedModel& model, const HttpRequest& request,
                                           KeyLease& lease, const Make& make) {
  std::optional<std::invoke_result_t<Make>> result;
  model.preparation().run(client_of(request), request.body.size(), [&] { result.emplace(make()); });
  constexpr int kServersOwn = 500;  // the first of these statuses
  if (!*result && result->error().status >= kServersOwn) lease.set_used_tokens(0);
  return std::move(*result);
}

}  // namespace lockstep
