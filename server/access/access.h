// Access control: the keys of a file, and what their owners have used. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/base/mutex.h"
#include "server/access/api_keys.h"
#include "server/access/key_limits.h"
#include "server/http/http_request.h"

namespace lockstep {

class Access {
 public:
  // An empty path: there are no keys, everything is allowed to everybody.
  static Result<std::unique_ptr<Access>> open(std::string key_file, bool metrics_without_key);

  // Reads the file again and changes nothing yet. Once what it returns has been called, keys that
  // are no longer there are refused.
  Result<std::function<void()>> prepare_reload();

  bool is_on() const { return !key_file_.empty(); }
  // HttpOptions::authorize. Without a key only /health and below it is open, what is the same for
  // everybody (HttpRoute::without_key), and /metrics if that was asked for: whatever else there is,
  // or is not, is refused with 401. 429 for more requests per minute than the key allows.
  std::expected<std::string, HttpRefusal> authorize(const HttpHead& head, KeyLimits::Time now);

  KeyLimits& limits() { return limits_; }

 private:
  Access(std::string key_file, bool metrics_without_key)
      : key_file_(std::move(key_file)), metrics_without_key_(metrics_without_key) {}
  bool needs_no_key(const HttpHead& head) const;

  const std::string key_file_;
  const bool metrics_without_key_;
  Mutex mutex_;
  // Shared with those who look a key up.
  std::shared_ptr<const ApiKeys> keys_ LOCKSTEP_GUARDED_BY(mutex_);
  KeyLimits limits_;
};

}  // namespace lockstep
