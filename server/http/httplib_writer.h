// cpp-httplib writes each answer, a handler's or a refusal: by process_request() of a subclass of
// its Server over a Stream of ours. What it writes is sound: the status line, fields (refusing
// those that would break the line), Content-Length, and a body or none for HEAD.
//
// The Stream holds a request line of our own, not the client's bytes. A request is parsed once, by
// request_head.h: the library would percent-decode the values of fields after it has checked them
// (so that "%0d%0a" becomes a line break), takes bare line feeds, folded lines and chunk
// extensions, and reads bodies within the call; with two parsers whatever they read differently is
// a hole.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

struct HttpAnswer {
  int status = 200;
  std::string content_type;
  std::string body;
  std::multimap<std::string, std::string> headers;  // beside Content-Type and Content-Length
  // The body follows in chunks, or until the connection ends, and is not in `body`.
  bool is_streamed = false;
};

// Not for two threads at once.
class HttplibWriter {
 public:
  HttplibWriter();
  ~HttplibWriter();

  // The bytes of `answer`, to a request with this method. Throws std::bad_alloc alone.
  std::string bytes(std::string_view method, HttpAnswer answer);

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace lockstep
