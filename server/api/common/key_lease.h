// The grant to the owner of an API key for one HTTP request: a place among those at once, and
// tokens. Given back when the request ends, less what it used, or, where it got no further than
// that, what its preparation costs by its bytes. The steps of its preparation are charged in any
// case.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/common/api_error.h"
#include "server/api/common/served_model.h"
#include "server/http/http_request.h"
#include "server/http/http_response.h"

namespace lockstep {

class KeyLease {
 public:
  // Nothing is granted, and nothing to be given back.
  KeyLease() = default;
  // The place, before the request's body is parsed, and the tokens of its preparation: who has too
  // many requests at once, or no token left, costs no more than this. 429 with x-ratelimit-*
  // headers then.
  static ApiResult<KeyLease> enter(ServedModel& model, const HttpRequest& request,
                                   HttpResponse& response);
  // The tokens of engine requests made from the request, `choices` for each prompt; one whose
  // answer may fill the context, as without max_tokens, counts as open (KeyLimits::TokenDemand).
  // Puts x-ratelimit-* headers on the answer, and the key's name and priority on the engine
  // requests. 429 if it is too much for now.
  ApiResult<void> reserve(size_t choices, std::vector<Request>& requests, HttpResponse& response);

  KeyLease(KeyLease&& other) noexcept;
  KeyLease& operator=(KeyLease&&) = delete;
  ~KeyLease();

  // The tokens that the request has come to, for the end; those of its preparation until then.
  void set_used_tokens(uint64_t tokens) { used_ = tokens; }

  // At once, beside all else: the steps that the preparation took (Preparation::run()).
  void charge_steps(uint64_t steps);

  // Gives back what the destructor would. Called before an answer's last bytes go out: a client
  // that has them may ask again, and finds its place free. Takes no memory.
  void end() noexcept;

  // Puts x-ratelimit-* headers on the answer, as reserve() does.
  void show(HttpResponse& response) const;

 private:
  KeyLease(std::string owner, uint32_t context_tokens)
      : owner_(std::move(owner)), context_tokens_(context_tokens) {}

  KeyLimits* limits_ = nullptr;  // null: nothing to give back
  std::string owner_;
  uint32_t context_tokens_ = 0;
  uint64_t reserved_ = 0;  // until reserve() that which the preparation was charged
  uint64_t used_ = 0;
};

}  // namespace lockstep
