#include "server/api/common/key_lease.h"

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

ApiError refuse(KeyLimits::Refusal refusal, HttpResponse& response) {
  add_headers(response, std::move(refusal.headers));
  return rate_limited(std::move(refusal.message), refusal.retry_after_seconds);
}

}  // namespace

ApiResult<KeyLease> KeyLease::enter(ServedModel& model, const HttpRequest& request,
                                    HttpResponse& response) {
  KeyLimits* const limits = request.principal.empty() ? nullptr : model.key_limits();
  KeyLease lease(request.principal, model.limits().context_tokens);
  if (limits == nullptr) return lease;
  auto entered = limits->enter(request.principal, request.body.size(), now());
  if (!entered) return std::unexpected(refuse(std::move(entered.error()), response));
  lease.limits_ = limits;  // the place is taken, and nothing has thrown since
  lease.reserved_ = lease.used_ = *entered;
  return lease;
}

ApiResult<void> KeyLease::reserve(size_t choices, std::vector<Request>& requests,
                                  HttpResponse& response) {
  KeyLimits::TokenDemand demand;
  // Nobody is more urgent than his key allows, and nobody without one than others.
  const int32_t priority = limits_ != nullptr ? limits_->priority(owner_) : 0;
  for (size_t index = 0; index < requests.size(); ++index) {
    Request& part = requests[index];
    if (index % choices == 0) demand.tokens += part.prompt.size();
    if (part.max_tokens > 0 && part.prompt.size() + part.max_tokens >= context_tokens_) {
      demand.open_tokens += part.max_tokens;
      ++demand.open_choices;
    } else {
      demand.tokens += part.max_tokens;
    }
    part.cache_owner = owner_;
    part.priority = std::max(part.priority, priority);
  }
  if (limits_ == nullptr) return {};
  auto reserved = limits_->reserve(owner_, demand, reserved_, now());
  if (!reserved) return std::unexpected(refuse(std::move(reserved.error()), response));
  reserved_ = *reserved;
  show(response);
  return {};
}

void KeyLease::charge_steps(uint64_t steps) {
  if (limits_ != nullptr) limits_->charge_steps(owner_, steps, now());
}

void KeyLease::show(HttpResponse& response) const {
  if (limits_ != nullptr) add_headers(response, limits_->headers(owner_, now()));
}

KeyLease::KeyLease(KeyLease&& other) noexcept
    : limits_(std::exchange(other.limits_, nullptr)),
      owner_(std::move(other.owner_)),
      context_tokens_(other.context_tokens_),
      reserved_(other.reserved_),
      used_(other.used_) {}

KeyLease::~KeyLease() {
  end();
}

void KeyLease::end() noexcept {
  KeyLimits* const limits = std::exchange(limits_, nullptr);
  if (limits != nullptr) limits->end(owner_, reserved_, used_, now());
}

}  // namespace lockstep
