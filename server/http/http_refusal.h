// A request that is refused before it reaches a handler: the status, and what was wrong.
#pragma once

#include <map>
#include <string>

namespace lockstep {

struct HttpRefusal {
  int status = 400;
  std::string message;
  std::multimap<std::string, std::string> headers = {};  // Retry-After, Allow and the like
  std::string body = {};  // a JSON text; none: HttpOptions::error_body words the message
};

}  // namespace lockstep
