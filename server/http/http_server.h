// HTTP/1.1 on sockets of our own: a gate (one thread, epoll) reads head and body of each request
// into a bounded buffer under deadlines and refuses what is malformed; cpp-httplib writes answers
// (httplib_writer.h says why it does not read); a thread is held only by a whole, admitted request.
// Not a word about models here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "server/http/http_counters.h"
#include "server/http/http_options.h"
#include "server/http/http_route.h"

namespace lockstep {

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
  // are still accepted, so that new clients are told.
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
