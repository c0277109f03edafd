// One finished request, as the log and the metrics see it.
#pragma once

#include <any>
#include <cstdint>
#include <string_view>

namespace lockstep {

// Most of it is empty for a request that was refused before its head was read.
struct HttpRecord {
  std::string_view method;
  std::string_view route;  // the pattern, or "" if no route matched
  std::string_view path;
  std::string_view request_id;
  std::string_view remote_address;
  std::string_view principal;  // as in HttpRequest
  int status = 0;
  double seconds = 0;
  uint64_t sent_bytes = 0;
  bool client_gone = false;
  std::any note;          // HttpResponse::set_note(); empty where there is none
  bool was_whole = true;  // false: refused before, which costs its client next to nothing
};

}  // namespace lockstep
