#include "server/access/key_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

using Seconds = std::chrono::duration<double>;

// The number of answers without a bound that may run at once before any is charged.
constexpr uint64_t kOpenAnswersPerMinute = 8;
// An English text has about as many bytes for each token, so that counting a prompt's tokens costs
// about as many as the prompt has.
constexpr uint64_t kBytesPerPreparedToken = 4;
// About ten microseconds of one processor: less than a prompt's token takes all of them. So usual
// templates and grammars cost little beside the prompt, and the dearest one that is let through
// (250 ms) as many tokens as a long prompt.
constexpr uint64_t kStepsPerPreparedToken = 256;

// As OpenAI writes it: "17ms", "1.5s", "1m20s".
std::string duration_text(Seconds duration) {
  const double seconds = std::max(0.0, duration.count());
  if (seconds < 1) return fmt::format("{}ms", std::llround(seconds * 1000));
  if (seconds < 60) return fmt::format("{:.3g}s", seconds);
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  return fmt::format("{}m{}s", whole / 60, whole % 60);
}

uint64_t whole_part(double amount) {
  return amount > 0 ? static_cast<uint64_t>(amount) : 0;
}

}  // namespace

void KeyLimits::Bucket::fill(double per_minute, Time now) {
  if (now > filled) left += per_minute * Seconds(now - filled).count() / 60;
  left = std::min(left, per_minute);
  filled = now;
}

Seconds KeyLimits::Bucket::wait(double missing, double per_minute) {
  return Seconds(missing <= 0 ? 0 : missing * 60 / per_minute);
}

KeyLimits::NewOwners::NewOwners(const std::vector<KeyOwner>& owners) {
  for (const KeyOwner& given : owners) by_name_[given.name].allowance = given.allowance;
}

void KeyLimits::set_owners(NewOwners&& owners, Time now) noexcept {
  const MutexLock lock(mutex_);
  for (auto& [name, owner] : owners_) owner.is_removed = true;
  for (auto& [name, given] : owners.by_name_) {
    const auto known = owners_.find(name);
    if (known == owners_.end()) {
      given.requests = {static_cast<double>(given.allowance.requests_per_minute), now};
      given.tokens = {static_cast<double>(given.allowance.tokens_per_minute), now};
      continue;
    }
    Owner& owner = known->second;
    owner.is_removed = false;
    const auto change = [&](Bucket& bucket, uint64_t before, uint64_t per_minute) {
      const auto limit = static_cast<double>(per_minute);
      // A limit that is new starts with all of it; one that changes keeps what has been used.
      if (before == 0) bucket = {limit, now};
      bucket.fill(limit, now);
    };
    change(owner.requests, owner.allowance.requests_per_minute,
           given.allowance.requests_per_minute);
    change(owner.tokens, owner.allowance.tokens_per_minute, given.allowance.tokens_per_minute);
    owner.allowance = given.allowance;
  }
  owners_.merge(owners.by_name_);  // those that were not known
  std::erase_if(owners_, [](const auto& entry) {
    return entry.second.is_removed && entry.second.running == 0;
  });
}

void KeyLimits::set_owners(const std::vector<KeyOwner>& owners, Time now) {
  set_owners(NewOwners(owners), now);
}

KeyLimits::Owner* KeyLimits::find(std::string_view name, Time now) {
  const auto found = owners_.find(name);
  if (found == owners_.end()) return nullptr;
  Owner& owner = found->second;
  owner.requests.fill(static_cast<double>(owner.allowance.requests_per_minute), now);
  owner.tokens.fill(static_cast<double>(owner.allowance.tokens_per_minute), now);
  return &owner;
}

std::expected<void, KeyLimits::Refusal> KeyLimits::count_request(std::string_view name, Time now) {
  const MutexLock lock(mutex_);
  Owner* owner = find(name, now);
  if (owner == nullptr || owner->allowance.requests_per_minute == 0) return {};
  const auto limit = static_cast<double>(owner->allowance.requests_per_minute);
  if (owner->requests.left < 1) {
    return std::unexpected(refuse(*owner,
                                  fmt::format("Rate limit reached: {} requests per minute",
                                              owner->allowance.requests_per_minute),
                                  Bucket::wait(1 - owner->requests.left, limit)));
  }
  owner->requests.left -= 1;
  return {};
}

// A part of a token is not waited for: a full bucket may be a rounding error short of it.
bool KeyLimits::holds(const Bucket& bucket, double tokens) {
  return bucket.left + 1e-6 >= tokens;
}

std::expected<uint64_t, KeyLimits::Refusal> KeyLimits::enter(std::string_view name,
                                                             size_t body_bytes, Time now) {
  const MutexLock lock(mutex_);
  Owner* owner = find(name, now);
  if (owner == nullptr) return 0;
  const KeyAllowance& allowance = owner->allowance;
  if (allowance.concurrent > 0 && owner->running >= allowance.concurrent) {
    return std::unexpected(
        refuse(*owner, fmt::format("Rate limit reached: {} requests at once", allowance.concurrent),
               Seconds(1)));
  }
  if (allowance.tokens_per_minute > 0 && !holds(owner->tokens, 1)) {
    return std::unexpected(refuse(
        *owner,
        fmt::format("Rate limit reached: {} tokens per minute, and none is left",
                    allowance.tokens_per_minute),
        Bucket::wait(1 - owner->tokens.left, static_cast<double>(allowance.tokens_per_minute))));
  }
  ++owner->running;
  const uint64_t tokens = (body_bytes + kBytesPerPreparedToken - 1) / kBytesPerPreparedToken;
  const uint64_t charged = std::min(tokens, allowance.tokens_per_minute);
  owner->tokens.left -= static_cast<double>(charged);
  return charged;
}

void KeyLimits::charge_steps(std::string_view name, uint64_t steps, Time now) {
  const MutexLock lock(mutex_);
  Owner* owner = find(name, now);
  if (owner == nullptr || owner->allowance.tokens_per_minute == 0) return;
  const uint64_t tokens = steps / kStepsPerPreparedToken;
  owner->tokens.left -= static_cast<double>(std::min(tokens, owner->allowance.tokens_per_minute));
}

std::expected<uint64_t, KeyLimits::Refusal> KeyLimits::reserve(std::string_view name,
                                                               const TokenDemand& demand,
                                                               uint64_t prepared_tokens, Time now) {
  const MutexLock lock(mutex_);
  Owner* owner = find(name, now);
  if (owner == nullptr || owner->allowance.tokens_per_minute == 0) return 0;
  const uint64_t per_minute = owner->allowance.tokens_per_minute;
  const uint64_t open_share = std::max<uint64_t>(1, per_minute / kOpenAnswersPerMinute);
  const uint64_t open = std::min(demand.open_tokens, demand.open_choices * open_share);
  const uint64_t reserved = std::min(demand.tokens + open, per_minute);
  const double further = static_cast<double>(reserved) - static_cast<double>(prepared_tokens);
  if (!holds(owner->tokens, further)) {
    return std::unexpected(refuse(
        *owner,
        fmt::format("Rate limit reached: {} tokens per minute; this request reserves {}, and {} "
                    "are left. A smaller max_tokens reserves less",
                    per_minute, reserved, whole_part(owner->tokens.left)),
        Bucket::wait(static_cast<double>(reserved) - owner->tokens.left,
                     static_cast<double>(per_minute))));
  }
  owner->tokens.left -= further;
  return reserved;
}

void KeyLimits::end(std::string_view name, uint64_t reserved_tokens, uint64_t used_tokens,
                    Time now) {
  const MutexLock lock(mutex_);
  Owner* owner = find(name, now);
  if (owner == nullptr) return;
  if (owner->running > 0) --owner->running;
  if (owner->allowance.tokens_per_minute > 0) {
    owner->tokens.left += static_cast<double>(reserved_tokens) - static_cast<double>(used_tokens);
    owner->tokens.fill(static_cast<double>(owner->allowance.tokens_per_minute), now);
  }
  if (owner->is_removed && owner->running == 0) owners_.erase(owners_.find(name));
}

KeyLimits::Headers KeyLimits::headers(std::string_view name, Time now) {
  const MutexLock lock(mutex_);
  const Owner* owner = find(name, now);
  return owner == nullptr ? Headers() : headers_of(*owner);
}

int32_t KeyLimits::priority(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = owners_.find(name);
  return found == owners_.end() ? 0 : found->second.allowance.priority;
}

KeyLimits::Headers KeyLimits::headers_of(const Owner& owner) {
  Headers headers;
  const auto add = [&](std::string_view what, const Bucket& bucket, uint64_t per_minute) {
    if (per_minute == 0) return;
    const auto limit = static_cast<double>(per_minute);
    headers.emplace_back(fmt::format("x-ratelimit-limit-{}", what), std::to_string(per_minute));
    headers.emplace_back(fmt::format("x-ratelimit-remaining-{}", what),
                         std::to_string(whole_part(bucket.left)));
    headers.emplace_back(fmt::format("x-ratelimit-reset-{}", what),
                         duration_text(Bucket::wait(limit - bucket.left, limit)));
  };
  add("requests", owner.requests, owner.allowance.requests_per_minute);
  add("tokens", owner.tokens, owner.allowance.tokens_per_minute);
  return headers;
}

KeyLimits::Refusal KeyLimits::refuse(const Owner& owner, std::string message, Seconds wait) {
  const int seconds = static_cast<int>(std::clamp(std::ceil(wait.count()), 1.0, 3600.0));
  return {std::move(message), seconds, headers_of(owner)};
}

}  // namespace lockstep
