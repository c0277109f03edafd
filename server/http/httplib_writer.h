// Where cpp-httplib does its part. The gate reads and checks requests itself, because the library's
// own reading holds a thread per connection and percent-decodes the values of header fields; what
// the library writes is sound: the status line, fields (refusing those that would break the line),
// Content-Length, and a body or none for HEAD. Each answer, a handler's or a refusal, is written by
// the library's Server::process_request() over a Stream that is a string.
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

  // The bytes of `answer`, to a request with this method.
  std::string bytes(std::string_view method, HttpAnswer answer);

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace lockstep
