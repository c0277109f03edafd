#include "server/http/http_server.h"

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "server/http/descriptor_shares.h"
#include "server/http/edge.h"
#include "server/http/gate.h"
#include "server/http/listener.h"
#include "server/http/tls.h"

namespace lockstep {
namespace {

// For routes that are served always: enough that one slow scrape does not hold a health check.
constexpr size_t kReservedThreads = 2;
constexpr size_t kOrdinaryThreadsKept = 4;
constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::string_view kSystemd = "systemd";

class GateServer final : public HttpServer {
 public:
  GateServer(std::vector<Listener> listeners, HttpOptions options, std::vector<HttpRoute> routes,
             std::unique_ptr<TlsIdentity> tls)
      : edge_(std::move(options), std::move(routes), std::move(tls)),
        gate_(std::move(listeners), edge_) {}
  ~GateServer() override { stop(); }

  uint16_t port() const override { return gate_.listeners().front().port(); }

  std::vector<std::string> addresses() const override {
    std::vector<std::string> addresses;
    for (const Listener& listener : gate_.listeners()) {
      const std::string scheme = edge_.tls != nullptr ? "https://" : "http://";
      addresses.push_back(listener.is_unix() ? listener.address() : scheme + listener.address());
    }
    return addresses;
  }

  void start() override {
    const size_t threads = edge_.options.limits.threads;
    edge_.ordinary_threads.start(std::min(threads, kOrdinaryThreadsKept), threads);
    edge_.reserved_threads.start(kReservedThreads, kReservedThreads);
    gate_.start();
  }

  void close_after_answers() override { gate_.close_after_answers(); }
  void stop_accepting() override { gate_.stop_accepting(); }

  void stop() override {
    gate_.stop();  // handlers learn that their clients have gone
    edge_.ordinary_threads.stop();
    edge_.reserved_threads.stop();
  }

  void set_limits(const HttpLimits& limits) override {
    edge_.ordinary_threads.set_counts(std::min(limits.threads, kOrdinaryThreadsKept),
                                      limits.threads);
    gate_.set_limits(limits);
  }

  size_t open_connections() const override { return gate_.open_connections(); }
  double turn_seconds() const override { return gate_.turn_seconds(); }
  const HttpCounters& counters() const override { return edge_.counters; }

  Result<std::function<void()>> prepare_tls() override {
    if (edge_.tls == nullptr) return [] {};
    return edge_.tls->prepare_reload();
  }

 private:
  Edge edge_;
  Gate gate_;
};

// Sockets that the service manager passes go before the address in the options: the socket unit
// says where to listen.
Result<std::vector<Listener>> listen(const HttpOptions& options) {
  std::vector<Listener> listeners;
  if (options.takes_passed_sockets) listeners = Listener::passed(options.environment);
  if (!listeners.empty()) return listeners;
  if (options.host == kSystemd && !options.takes_passed_sockets) {
    return invalid_input(
        "{} systemd: the sockets that a service manager passes are for all requests; name an "
        "address or unix:PATH",
        options.host_option);
  }
  if (options.host == kSystemd) {
    return invalid_input(
        "--host systemd, but the service manager has passed no listening socket (LISTEN_FDS): "
        "start "
        "the socket unit, or name an address");
  }
  auto listener =
      options.host.starts_with(kUnixPrefix)
          ? Listener::bind_path(options.host.substr(kUnixPrefix.size()), options.socket_mode)
          : Listener::bind(options.host, options.port);
  if (!listener) {
    Error error = std::move(listener.error());
    error.message = fmt::format("{}: {}", options.host_option, error.message);
    return std::unexpected(std::move(error));
  }
  listeners.push_back(std::move(*listener));
  return listeners;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::bind(HttpOptions options,
                                                     std::vector<HttpRoute> routes) {
  if (!options.error_body) {
    options.error_body = [](std::string_view, int, std::string_view) { return std::string("{}"); };
  }
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return invalid_input("--tls-certificate and --tls-key belong together; only one is given");
  }
  std::unique_ptr<TlsIdentity> tls;
  if (!options.tls_certificate.empty()) {
    auto loaded = TlsIdentity::load(options.tls_certificate, options.tls_key);
    if (!loaded) return std::unexpected(std::move(loaded.error()));
    tls = std::move(*loaded);
  }
  // The usual soft limit is 1024.
  raise_descriptor_limit({.connections = options.limits.connections,
                          .over_limit = options.limits.over_limit_connections});
  auto listeners = listen(options);
  if (!listeners) return std::unexpected(std::move(listeners.error()));
  return std::make_unique<GateServer>(std::move(*listeners), std::move(options), std::move(routes),
                                      std::move(tls));
}

}  // namespace lockstep
