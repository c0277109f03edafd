// The rules for pages in a browser that ask the server: by the origin of a page, and by the name
// that it calls the server by.
#pragma once

#include <expected>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_request.h"
#include "server/http/request_head.h"

namespace lockstep {

// Which pages of other origins may read answers: the CORS protocol of the Fetch standard. Off
// unless origins are given. Keys travel in headers, not in cookies, so credentials stay off.
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

// By which names a browser on this machine may call a server that asks for no keys. A page whose
// name has been made to stand for 127.0.0.1 (DNS rebinding) is of the server's own origin then, so
// that CORS does not hold it back; but its requests still bear its name as their Host.
class AllowedHosts {
 public:
  // `names`, with or without a port, and "*": any; besides those that nobody can make stand for
  // another address: localhost and names below it, IP addresses, and this machine's own name.
  explicit AllowedHosts(const std::vector<std::string>& names);

  // HttpOptions::authorize: lets everybody in without a principal, but for requests from a loopback
  // address whose Host is another name: 403. The routes of health are open to all: who probes sends
  // any Host, and they tell nothing of what is asked or answered. /metrics does. Any thread.
  std::expected<std::string, HttpRefusal> authorize(const HttpHead& head) const;

  // `host`: as the header has it. A request that names none ("") is no browser's.
  bool allows(std::string_view host) const;

 private:
  bool allows_any_ = false;
  std::set<std::string> names_;  // in lower case
};

}  // namespace lockstep
