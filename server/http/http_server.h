// HTTP/1.1 on sockets of our own: a gate (one thread, epoll) reads head and body of each request
// into a bounded buffer under deadlines and refuses what is malformed; cpp-httplib writes answers
// (httplib_writer.h says why it does not read); a thread is held only by a whole, admitted request.
// Not a word about models here.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "server/http/http_counters.h"
#include "server/http/http_refusal.h"

namespace lockstep {

struct HttpLimits {
  size_t head_bytes = 16 * 1024;
  size_t head_fields = 64;
  size_t target_bytes = 2 * 1024;  // path and query
  size_t body_bytes = 4 * 1024 * 1024;
  // Of all requests that are read, wait or run, until HttpResponse::release_body(). The requests of
  // one network have a part of it: see may_hold_body() of networks.h.
  size_t bodies_bytes = 512 * 1024 * 1024;
  std::chrono::milliseconds head_deadline{10'000};
  std::chrono::milliseconds body_deadline{30'000};
  // From body_grace after its head on, a body must have come at this rate at least; 0: any.
  size_t body_bytes_per_second = 64 * 1024;
  std::chrono::milliseconds body_grace{10'000};
  std::chrono::milliseconds write_deadline{10'000};  // a client that takes nothing for so long
  // Once an answer is complete, what the client owes must be taken at this rate at least, from
  // write_deadline after that on; 0: any.
  size_t answer_bytes_per_second = 64 * 1024;
  std::chrono::milliseconds idle_deadline{15'000};  // between two requests of one connection
  size_t unsent_bytes = 256 * 1024;                 // what a streaming client may owe
  // Of all answers together that clients have not taken yet; above it whoever owes most is
  // cut, of the network that owes most.
  size_t answers_bytes = 512 * 1024 * 1024;
  size_t connections = 4096;
  size_t connections_per_address = 256;  // of an IPv4 address or an IPv6 network of 64 bits
  // Above these limits so many more clients are heard, for probes and scrapes; the oldest that does
  // not get an answer makes room for the next.
  size_t over_limit_connections = 64;
  // For the handshake and the head of such a client: others want its place.
  std::chrono::milliseconds over_limit_deadline{1'000};
  // Requests served at once; more wait, /health and /metrics excepted. One client's have a part of
  // them: see may_serve() of networks.h.
  size_t threads = 64;
  size_t nesting = 64;  // levels of arrays and objects in a body: for whoever parses it
};

struct HttpRequest {
  std::string method;                               // upper case
  std::string path;                                 // without the query, percent-decoded
  std::string query;                                // raw, may be empty
  std::multimap<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string remote_address;
  std::string principal;   // the name of the key it came with; "" where none is asked for
  std::string request_id;  // X-Request-Id as sent (if at most 128 printable characters), or made up
  std::map<std::string, std::string> path_parameters;  // ":id" of the route's pattern
  size_t nesting_max = 64;                             // limits.nesting
  std::chrono::steady_clock::time_point arrived = {};  // when it was whole

  // The first header of this (lower case) name, or "".
  std::string_view header(std::string_view name) const;
};

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
  virtual bool write(std::string_view bytes) = 0;

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
};

using HttpHandler = std::function<void(const HttpRequest&, HttpResponse&)>;

struct HttpRoute {
  std::string method;   // "GET", "POST"; a GET route answers HEAD as well
  std::string pattern;  // "/v1/models/:id"; ":name" takes one whole segment, a last ":name*" all
  HttpHandler handler;
  bool always = false;       // served even when all threads are busy (health, metrics)
  bool without_key = false;  // the same bytes for everybody: for HttpOptions::authorize
  // Why no request of this client (its key's name, or its network) can be taken now, if so: asked
  // by the gate's thread when one is whole, which is then refused for next to nothing. Must not
  // block.
  std::function<std::optional<HttpRefusal>(const std::string& client)> busy = {};
};

// A request as access control sees it: when its head is whole, before its body is read.
struct HttpHead {
  std::string_view method;
  std::string_view route;                                  // the pattern, or "" if no route matched
  const std::multimap<std::string, std::string>& headers;  // names in lower case
  std::string_view remote_address;
  bool without_key = false;  // the route's; false if no route matched

  std::string_view header(
      std::string_view name) const;  // the first of this (lower case) name, or ""
};

// Who sent it (HttpRequest::principal), or why it is refused. Called by the gate's thread for every
// request, known path or not; must not block.
using HttpAuthorize = std::function<std::expected<std::string, HttpRefusal>(const HttpHead&)>;

// What a request that never reaches a handler is answered with: the api layer words the errors.
// `path` as far as it is known; "" if nothing of it is.
using HttpErrorBody = std::function<std::string(std::string_view path, int status,
                                                std::string_view message)>;  // a JSON text

// One finished request, for the log and the metrics; called by the thread that served it, or the
// gate's. Of one that was refused before its head was read, little is known.
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
  bool was_whole = true;  // false: refused before, which costs its client next to nothing
};

struct HttpOptions {
  // An address or a name; "unix:/path"; or "systemd": the sockets that the service manager passes.
  std::string host = "127.0.0.1";
  uint16_t port = 8080;                // 0: any free one
  uint32_t socket_mode = 0660;         // permissions of a Unix socket
  std::string host_option = "--host";  // what an error about the address is told of
  // Whether the sockets that the service manager has passed go before host and port.
  bool takes_passed_sockets = true;
  std::string gate_name = "gate";  // of its thread; at most 15 bytes
  // Files in PEM; with both, clients over IP speak TLS 1.2 or newer. A Unix socket stays as it is.
  std::string tls_certificate;  // the server's own first, then those that lead to its issuer
  std::string tls_key;
  // Origins whose pages may read answers ("https://chat.example.org"), or "*" for any.
  std::vector<std::string> cors_origins;
  HttpLimits limits;
  HttpAuthorize authorize;  // none: everything is let in, without a principal
  HttpErrorBody error_body;
  std::function<void(const HttpRecord&)> on_finished;
};

class HttpServer {
 public:
  // Binds and listens, so that a port that is taken is an error here (kMachineRefused, naming host,
  // port and reason), and reads the certificate; answers nothing before start().
  static Result<std::unique_ptr<HttpServer>> bind(HttpOptions options,
                                                  std::vector<HttpRoute> routes);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;  // of the first address; 0 for a Unix socket
  // "http://127.0.0.1:8080", "https://[::1]:8443", "unix:/run/lockstep.sock".
  virtual std::vector<std::string> addresses() const = 0;
  virtual void start() = 0;  // begins to serve; returns at once
  // From here on connections close after their answer, those without a request at once; new ones
  // are still accepted, so that whoever asks is told.
  virtual void close_after_answers() = 0;
  virtual void stop_accepting() = 0;  // the same, and closes the listening socket
  virtual void stop() = 0;            // cuts what is left and joins all threads
  virtual size_t open_connections() const = 0;
  // For how long the gate's thread has been at what it does now, in seconds; 0 while it waits for
  // clients. A turn takes milliseconds. Any thread, lock-free.
  virtual double turn_seconds() const = 0;
  virtual const HttpCounters& counters() const = 0;  // any thread
  // Requests and connections that begin from here on have these limits; those that have begun keep
  // theirs. Any thread.
  virtual void set_limits(const HttpLimits& limits) = 0;
  // Reads certificate and key again and changes nothing yet; an error if they cannot be used. Once
  // what it returns has been called, connections that begin use them. Any thread. Without TLS
  // nothing happens.
  virtual Result<std::function<void()>> prepare_tls() = 0;
};

}  // namespace lockstep
