// A server with routes that show what the gate lets through.
#pragma once

#include <any>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http/http_server.h"
#include "tests/server/http/raw_client.h"

namespace lockstep {

// Opens once; waits fail the test after a long while instead of hanging it.
class Signal {
 public:
  void give();
  bool wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_given_ = false;
};

// A finished request as the server reported it.
struct SeenRecord {
  std::string method;
  std::string route;
  std::string request_id;
  std::string principal;
  int status = 0;
  bool client_gone = false;
  std::any note;
};

// GET /hello          "hello"
// POST /echo          the body
// POST /size          the body's size
// POST /queue         the body's size; refused while `is_busy`
// GET /who            the principal
// POST /tenant        the tenant, which "busy" was asked for before
// GET /models/:id     the parameter
// GET /request        path, query and the header "x-test" as the handler sees them
// GET /stream         "one", "two", "three" in three writes
// GET /throw          throws before it answers
// GET /note           "noted", with the path as its note
// GET /silent         does not answer
// GET /block          waits for `unblock`; the gone callback gives `client_left`
// POST /release       gives its body up, then as /block
// GET /guard          its gone callback refers to its own variables; counts in `late` if they are
// gone GET /endless        writes until write() fails, then gives `write_failed` GET /health
// "healthy"; served always
class TestServer {
 public:
  // `change`: further options.
  explicit TestServer(HttpLimits limits = {},
                      const std::function<void(HttpOptions&)>& change = nullptr);
  ~TestServer();

  HttpServer& server() { return *server_; }
  uint16_t port() const { return server_->port(); }
  uint64_t cuts(HttpCut reason) const {
    return server_->counters().cuts[static_cast<size_t>(reason)];
  }
  uint64_t rejections(HttpRejection reason) const {
    return server_->counters().rejections[static_cast<size_t>(reason)];
  }
  std::vector<SeenRecord> records();
  // One request over a connection of its own.
  std::optional<RawResponse> get(const std::string& path);

  Signal blocked;  // a handler of /block runs
  Signal unblock;
  Signal client_left;
  Signal write_failed;
  std::atomic<int> handled = 0;  // handlers begun
  std::atomic<int> left = 0;     // gone callbacks called
  std::atomic<int> late = 0;
  std::atomic<bool> was_gone_in_handler = false;
  std::atomic<bool> is_busy = false;

 private:
  std::vector<HttpRoute> routes();
  void block(HttpResponse& response);
  void guard(HttpResponse& response);
  void write_endlessly(HttpResponse& response);

  std::unique_ptr<HttpServer> server_;
  std::mutex records_mutex_;
  std::vector<SeenRecord> records_;
};

// "METHOD path HTTP/1.1" with Host and the given lines ("Name: value\r\n"), and a body of its own.
std::string request_text(const std::string& method, const std::string& path,
                         const std::string& lines = "", const std::string& body = "");

}  // namespace lockstep
