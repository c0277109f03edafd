#include "server/access/access.h"

#include <chrono>
#include <utility>

#include "engine/base/ascii.h"
#include "server/http/http_request.h"

namespace lockstep {
namespace {

constexpr std::string_view kScheme = "bearer ";
constexpr std::string_view kMetrics = "/metrics";

bool is_bearer(std::string_view field) {
  return ascii_lower(field.substr(0, kScheme.size())) == kScheme;
}

// "Authorization: Bearer KEY", or "x-api-key: KEY" as Anthropic's clients send it.
std::string_view presented_key(const HttpHead& head) {
  std::string_view field = head.header("authorization");
  if (!is_bearer(field)) return head.header("x-api-key");
  field.remove_prefix(kScheme.size());
  field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
  return field;
}

HttpRefusal unauthorized(std::string message) {
  return {401, std::move(message), {{"WWW-Authenticate", "Bearer"}}};
}

}  // namespace

Result<std::unique_ptr<Access>> Access::open(std::string key_file, bool metrics_without_key) {
  std::unique_ptr<Access> access(new Access(std::move(key_file), metrics_without_key));
  const auto read = access->prepare_reload();
  if (!read) return std::unexpected(read.error());
  (*read)();
  return access;
}

Result<std::function<void()>> Access::prepare_reload() {
  if (!is_on()) return [] {};
  auto read = ApiKeys::load(key_file_);
  if (!read) return std::unexpected(std::move(read.error()));
  const auto keys = std::make_shared<const ApiKeys>(std::move(*read));
  const auto owners = std::make_shared<KeyLimits::NewOwners>(keys->owners());
  return [this, keys, owners] {
    limits_.set_owners(std::move(*owners), std::chrono::steady_clock::now());
    const MutexLock lock(mutex_);
    keys_ = keys;
  };
}

bool Access::needs_no_key(const HttpHead& head) const {
  return head.without_key || is_health_route(head.route) ||
         (metrics_without_key_ && head.route == kMetrics);
}

std::expected<std::string, HttpRefusal> Access::authorize(const HttpHead& head,
                                                          KeyLimits::Time now) {
  if (!is_on() || needs_no_key(head)) return std::string();
  std::shared_ptr<const ApiKeys> keys;
  {
    const MutexLock lock(mutex_);
    keys = keys_;
  }
  const std::string_view key = presented_key(head);
  if (key.empty()) {
    return std::unexpected(
        unauthorized("No API key was given: send it as \"Authorization: Bearer KEY\""));
  }
  const KeyOwner* owner = keys->find(key);
  if (owner == nullptr) return std::unexpected(unauthorized("The API key is not valid"));
  if (head.route == kMetrics) return owner->name;
  if (auto counted = limits_.count_request(owner->name, now); !counted) {
    HttpRefusal refusal{429, std::move(counted.error().message)};
    refusal.headers.emplace("Retry-After", std::to_string(counted.error().retry_after_seconds));
    for (auto& field : counted.error().headers) refusal.headers.insert(std::move(field));
    return std::unexpected(std::move(refusal));
  }
  return owner->name;
}

}  // namespace lockstep
