// A request that is refused before it reaches a handler: the status, and what was wrong.
#pragma once

#include <string>

namespace lockstep {

struct HttpRefusal {
  int status = 400;
  std::string message;
};

}  // namespace lockstep
