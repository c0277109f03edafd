// Counts what the owners of API keys have used of their allowances. Time comes in as a value, so
// that tests need no clock. Any thread.
//
// A minute's requests and tokens are buckets that fill evenly and hold a minute's worth. A request
// takes its place and is charged for its preparation, reserves the tokens that it can come to once
// these are known, and at its end gives back what it did not use. Between the two no token can
// be spent twice.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "server/access/api_keys.h"

namespace lockstep {

class KeyLimits {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // OpenAI's x-ratelimit-* fields, for those amounts that are limited.
  using Headers = std::vector<std::pair<std::string, std::string>>;

  struct Refusal {
    std::string message;
    int retry_after_seconds = 1;
    Headers headers;
  };

  // The tokens that a request may come to. An answer that may fill the context hardly ever does:
  // for each such choice an eighth of a minute is reserved, if its share of `open_tokens` is not
  // less.
  struct TokenDemand {
    uint64_t tokens = 0;        // of prompts, and of answers that are bounded
    uint64_t open_tokens = 0;   // of all answers that may fill the context
    uint64_t open_choices = 0;  // how many those are
  };

  // Owners and their allowances that are to count.
  class NewOwners;
  // From here on these count, which are handed over. A known owner keeps what has been used. Takes
  // no memory.
  void set_owners(NewOwners&& owners, Time now) noexcept;
  // Makes them as well.
  void set_owners(const std::vector<KeyOwner>& owners, Time now);

  // Counts one HTTP request; unknown owners and "" have no limits, here and below.
  std::expected<void, Refusal> count_request(std::string_view owner, Time now);

  // Takes one of the places for requests at once, before anybody knows what the request comes to,
  // and charges the preparation of a body of `body_bytes`: a token for each four bytes, a whole
  // minute's at most. Refused as well while no token is left; of a preparation that is dearer than
  // what is left, the rest is owed. What is returned goes to reserve() or end(), which give the
  // place and the tokens back.
  std::expected<uint64_t, Refusal> enter(std::string_view owner, size_t body_bytes, Time now);
  // Charges what a preparation took beyond what its bytes tell of: a token for each 256 steps of
  // pause_point(), a whole minute's at most. What is dearer than what is left is owed. Neither
  // reserve() nor end() gives it back.
  void charge_steps(std::string_view owner, uint64_t steps, Time now);
  // Reserves tokens for a request that has entered, a whole minute's at most, instead of
  // `prepared_tokens`, which enter() has charged. What is returned goes to end(); where it is
  // refused, prepared_tokens stay charged.
  std::expected<uint64_t, Refusal> reserve(std::string_view owner, const TokenDemand& demand,
                                           uint64_t prepared_tokens, Time now);
  // Gives the place back and charges what was used instead of what was reserved, be it more: then
  // nothing is left until the minutes have refilled it.
  void end(std::string_view owner, uint64_t reserved_tokens, uint64_t used_tokens, Time now);

  Headers headers(std::string_view owner, Time now);
  // 0 for an unknown owner.
  int32_t priority(std::string_view owner);

 private:
  // Holds what is left of a minute's amount; below 0 after more was used than was reserved.
  struct Bucket {
    double left = 0;
    Time filled = {};

    void fill(double per_minute, Time now);
    // How long until `amount` is there.
    static std::chrono::duration<double> wait(double missing, double per_minute);
  };
  struct Owner {
    KeyAllowance allowance;
    Bucket requests;
    Bucket tokens;
    uint64_t running = 0;
    bool is_removed = false;  // forgotten when nothing of it runs
  };
  using OwnersByName = std::map<std::string, Owner, std::less<>>;

  Owner* find(std::string_view name, Time now) LOCKSTEP_REQUIRES(mutex_);
  static bool holds(const Bucket& bucket, double tokens);
  static Headers headers_of(const Owner& owner);
  static Refusal refuse(const Owner& owner, std::string message,
                        std::chrono::duration<double> wait);

  Mutex mutex_;
  OwnersByName owners_ LOCKSTEP_GUARDED_BY(mutex_);
};

class KeyLimits::NewOwners {
 public:
  // Throws std::bad_alloc.
  explicit NewOwners(const std::vector<KeyOwner>& owners);

 private:
  friend KeyLimits;
  OwnersByName by_name_;
};

}  // namespace lockstep
