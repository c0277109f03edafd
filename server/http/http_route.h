// A path and the handler that answers there.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "server/http/http_refusal.h"
#include "server/http/http_request.h"
#include "server/http/http_response.h"

namespace lockstep {

using HttpHandler = std::function<void(const HttpRequest&, HttpResponse&)>;

struct HttpRoute {
  std::string method;   // "GET", "POST"; a GET route answers HEAD as well
  std::string pattern;  // "/v1/models/:id"; ":name" takes one whole segment, a last ":name*" all
  HttpHandler handler;
  bool always = false;       // served even when all threads are busy (health, metrics)
  bool without_key = false;  // the same bytes for everybody: for HttpOptions::authorize
  // Why no request of this tenant (HttpRequest::tenant) can be taken now, if so: asked by the
  // gate's thread when one is whole, which is then refused for next to nothing. Must not block.
  std::function<std::optional<HttpRefusal>(const std::string& tenant)> busy = {};
};

}  // namespace lockstep
