// Which pages of other origins may read answers: the CORS protocol of the Fetch standard. Off
// unless origins are given. Keys travel in headers, not in cookies, so credentials stay off.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/request_head.h"

namespace lockstep {

class Cors {
 public:
  using Headers = std::multimap<std::string, std::string>;

  // "*": any origin.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // The headers that the answer to this request must bear; none while off.
  Headers answer_headers(const RequestHead& head) const;
  // Whether a browser asks here, before the request itself, whether it may send it, for a page of
  // an origin that may. Such a question bears no key.
  bool is_preflight(const RequestHead& head) const;
  // The headers that answer a preflight, beside answer_headers().
  static Headers preflight_headers(const RequestHead& head);

 private:
  bool allows(std::string_view origin) const;

  const std::vector<std::string> origins_;
};

}  // namespace lockstep
