#include "server/http/http_server.h"

#include <utility>

#include "server/http/edge.h"
#include "server/http/gate.h"
#include "server/http/listener.h"

namespace lockstep {
namespace {

// For routes that are served always: enough that one slow scrape does not hold a health check.
constexpr size_t kReservedThreads = 2;

class GateServer final : public HttpServer {
 public:
  GateServer(Listener listener, HttpOptions options, std::vector<HttpRoute> routes)
      : edge_(std::move(options), std::move(routes)), gate_(std::move(listener), edge_) {}
  ~GateServer() override { stop(); }

  uint16_t port() const override { return gate_.port(); }

  void start() override {
    edge_.ordinary_threads.start(edge_.options.limits.threads);
    edge_.reserved_threads.start(kReservedThreads);
    gate_.start();
  }

  void close_after_answers() override { gate_.close_after_answers(); }
  void stop_accepting() override { gate_.stop_accepting(); }

  void stop() override {
    gate_.stop();  // handlers learn that their clients have gone
    edge_.ordinary_threads.stop();
    edge_.reserved_threads.stop();
  }

  size_t open_connections() const override { return gate_.open_connections(); }

 private:
  Edge edge_;
  Gate gate_;
};

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = headers.lower_bound(std::string(name));
  return found != headers.end() && found->first == name ? std::string_view(found->second) : "";
}

Result<std::unique_ptr<HttpServer>> HttpServer::bind(HttpOptions options,
                                                     std::vector<HttpRoute> routes) {
  if (!options.error_body) {
    options.error_body = [](int, std::string_view) { return std::string("{}"); };
  }
  auto listener = Listener::bind(options.host, options.port);
  if (!listener) return std::unexpected(std::move(listener.error()));
  return std::make_unique<GateServer>(std::move(*listener), std::move(options), std::move(routes));
}

}  // namespace lockstep
