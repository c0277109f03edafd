// The answer to one request, as its handler gives it.
#pragma once

#include <any>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

// The answer to one request; belongs to the handler's thread, but for client_gone().
// Either send() once, or start_stream() and then write() any number of times.
class HttpResponse {
 public:
  virtual ~HttpResponse() = default;

  virtual void set_header(std::string name, std::string value) = 0;
  // The handler has read the request's body, which is empty from here on: its memory is another's,
  // but for `kept_bytes` that the handler holds of it, which count as a body's until it returns.
  virtual void release_body(size_t kept_bytes) = 0;
  virtual void send(int status, std::string_view content_type, std::string body) = 0;

  // Sends the head of a chunked answer. False if the client has gone.
  virtual bool start_stream(int status, std::string_view content_type) = 0;
  // Queues bytes for the client and wakes the gate; blocks while the client owes more than
  // limits.unsent_bytes, until limits.write_deadline. False if the client has gone (or was cut):
  // further writes are pointless.
  virtual bool write(std::string bytes) = 0;

  // True once the client's end of the connection is known to be closed, or its sending side alone,
  // which looks the same: its stream ends, and its handler may give up what it computes. A whole
  // answer that is given all the same is sent, as are those to requests that came behind it.
  virtual bool client_gone() const = 0;
  // Called at most once, by the gate's thread, when the client leaves before the handler returns;
  // at once if it has left already. Must not block. A callback that refers to the handler's own
  // variables must be taken back before they go, with an empty one: after that none runs.
  virtual void on_client_gone(std::function<void()> callback) = 0;
  // Any thread, until the handler returns. More of a stream has been made than may wait for a
  // client that takes it so slowly: the connection is cut.
  virtual void cut_too_slow() = 0;

  // Goes to HttpOptions::on_finished with the record of the request; HTTP does not look at it.
  virtual void set_note(std::any note) = 0;
};

}  // namespace lockstep
