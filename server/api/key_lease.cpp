#include "server/api/key_lease.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep {
namespace {

KeyLimits::Time now() {
  return std::chrono::steady_clock::now();
}

void add_headers(HttpResponse& response, KeyLimits::Headers headers) {
  for (auto& [name, value] : headers) response.set_header(std::move(name), std::move(value));
}

}  // namespace

ApiResult<KeyLease> KeyLease::take(ServedModel& model, const HttpRequest& request, size_t choices,
                                   std::vector<Request>& requests, HttpResponse& response) {
  KeyLimits* limits = request.principal.empty() ? nullptr : model.key_limits();
  uint64_t tokens = 0;
  for (size_t index = 0; index < requests.size(); ++index) {
    Request& part = requests[index];
    if (index % choices == 0) tokens += part.prompt.size();
    tokens += part.max_tokens;
    part.tenant = request.principal;
    // Nobody is more urgent than his key allows, and nobody without one than others.
    part.priority =
        std::max(part.priority, limits != nullptr ? limits->priority(request.principal) : 0);
  }
  return take(model, request, tokens, response);
}

ApiResult<KeyLease> KeyLease::take(ServedModel& model, const HttpRequest& request, uint64_t tokens,
                                   HttpResponse& response) {
  KeyLimits* limits = request.principal.empty() ? nullptr : model.key_limits();
  if (limits == nullptr) return KeyLease(nullptr, "", 0);
  auto reserved = limits->begin(request.principal, tokens, now());
  if (!reserved) {
    add_headers(response, std::move(reserved.error().headers));
    return std::unexpected(
        rate_limited(std::move(reserved.error().message), reserved.error().retry_after_seconds));
  }
  add_headers(response, limits->headers(request.principal, now()));
  return KeyLease(limits, request.principal, *reserved);
}

KeyLease::KeyLease(KeyLease&& other) noexcept
    : limits_(std::exchange(other.limits_, nullptr)),
      owner_(std::move(other.owner_)),
      reserved_(other.reserved_),
      used_(other.used_) {}

KeyLease::~KeyLease() {
  if (limits_ != nullptr) limits_->end(owner_, reserved_, used_, now());
}

}  // namespace lockstep
