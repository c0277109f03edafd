// lockstepd check-health: asks a daemon on this machine whether it serves; for the health checks of
// containers, whose images hold no other HTTP client.
#include <httplib.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <utility>

#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/commands/tls_probe.h"

namespace lockstep {
namespace {

constexpr std::string_view kReadyPath = "/health/ready";
constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kHttp = "http://";
constexpr std::string_view kHttps = "https://";

// The URL at which a daemon with these options answers probes that come from its own machine.
Result<std::string> own_url(const Options& options) {
  const bool has_own = !options.probe_host.empty();
  std::string host = has_own ? options.probe_host : options.http.host;
  const uint16_t port = has_own ? options.probe_port : options.http.port;
  if (host.starts_with(kUnix)) return host;
  if (host == "systemd") {
    return invalid_input("--host systemd does not say where the sockets are: give --url");
  }
  const std::string_view scheme = options.http.tls_certificate.empty() ? "http" : "https";
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::") host = "::1";
  if (host.find(':') != std::string::npos) host = fmt::format("[{}]", host);
  return fmt::format("{}://{}:{}{}", scheme, host, port, kReadyPath);
}

struct Target {
  std::string server;  // "http://host:port", "https://host:port" or "unix:/socket"
  std::string path;
  bool is_tls = false;
};

Result<Target> split_url(const std::string& url) {
  if (url.starts_with(kUnix) && url.size() > kUnix.size()) {
    return Target{url, std::string(kReadyPath)};
  }
  const bool is_tls = url.starts_with(kHttps);
  const std::string_view scheme = is_tls ? kHttps : kHttp;
  if (!url.starts_with(scheme) || url.size() == scheme.size()) {
    return invalid_input("--url: \"{}\" is no URL that begins with {}, {} or {}", url, kHttp,
                         kHttps, kUnix);
  }
  const size_t slash = url.find('/', scheme.size());
  if (slash == std::string::npos) return Target{url, std::string(kReadyPath), is_tls};
  return Target{url.substr(0, slash), url.substr(slash), is_tls};
}

// "https://host:port", the port 443 if there is none; an IPv6 address stands in brackets.
Result<std::pair<std::string, uint16_t>> split_authority(std::string_view server) {
  std::string_view host = server.substr(kHttps.size());
  uint16_t port = 443;
  const size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && host.back() != ']') {
    const std::string_view digits = host.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      return invalid_input("--url: \"{}\" names no port", server);
    }
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) return invalid_input("--url: \"{}\" names no host", server);
  return std::pair(std::string(host), port);
}

struct TrustOptions {
  std::string tls_ca;
  bool insecure = false;
};

// Whom to believe: the certificates given, the daemon's own and those that it was signed with
// (whose name for this machine nobody can know), or any server that answers on this machine.
Result<TlsTrust> choose_trust(const TrustOptions& given, const std::string& own_certificate,
                              const std::string& host) {
  if (!given.tls_ca.empty()) return TlsTrust{.certificates = given.tls_ca, .checks_name = true};
  if (given.insecure) {
    if (is_loopback(host)) return TlsTrust{.certificates = "", .checks_name = false};
    return invalid_input("--insecure is for this machine alone, and {} is not its loopback", host);
  }
  if (!own_certificate.empty()) {
    return TlsTrust{.certificates = own_certificate, .checks_name = !is_loopback(host)};
  }
  return invalid_input(
      "TLS: name the certificate to trust with --tls-ca, or the daemon's own with "
      "--tls-certificate; or --insecure to believe anyone who answers on this machine");
}

int show(int status, std::string_view body) {
  std::cout << status << ' ' << body << '\n';
  return status >= 200 && status < 300 ? 0 : 1;
}

int show_failure(const Target& target, std::string_view why) {
  std::cerr << fmt::format("lockstepd: {}{}: {}\n", target.server, target.path, why);
  return 1;
}

int ask_over_tls(const Target& target, const TrustOptions& given, const Options& options,
                 double seconds) {
  const auto place = split_authority(target.server);
  if (!place) return report(place.error());
  const auto trust = choose_trust(given, options.http.tls_certificate, place->first);
  if (!trust) return report(trust.error());
  std::signal(SIGPIPE, SIG_IGN);
  const auto answer = get_over_tls(place->first, place->second, target.path, *trust, seconds);
  if (answer) return show(answer->status, answer->body);
  if (answer.error().kind == ErrorKind::kInvalidInput) return report(answer.error());
  return show_failure(target, answer.error().message);
}

// 0 for an answer of 2xx. Says what came instead, which ends up in the container's health log.
int ask(const Target& target, double seconds) {
  const auto limit = std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  const bool is_unix = target.server.starts_with(kUnix);
  httplib::Client client(is_unix ? target.server.substr(kUnix.size()) : target.server);
  if (is_unix) client.set_address_family(AF_UNIX);
  client.set_connection_timeout(limit);
  client.set_read_timeout(limit);
  client.set_write_timeout(limit);
  client.set_max_timeout(std::chrono::duration_cast<std::chrono::milliseconds>(limit));
  const auto answer = client.Get(target.path);
  if (!answer) return show_failure(target, httplib::to_string(answer.error()));
  return show(answer->status, answer->body);
}

}  // namespace

int run_check_health(const std::vector<std::string>& arguments) {
  CommandLine line(
      "check-health",
      "Asks a running daemon whether it is ready. Exit codes: 0 if it is; 1 if not, or "
      "if nothing answers; 2 for what was given.",
      kCheckHealth);
  std::string url;
  TrustOptions trust;
  double seconds = 2;
  line.app()
      .add_option("--url", url,
                  "What to ask: http://HOST:PORT/PATH, https://HOST:PORT/PATH, or unix:/SOCKET; "
                  "without it /health/ready where the options say that the daemon answers probes")
      ->type_name("URL");
  line.app()
      .add_option(
          "--tls-ca", trust.tls_ca,
          "Certificates in PEM: over TLS the daemon's must be one of them or signed by one, "
          "and name the host. Without it --tls-certificate is trusted whatever it names, as "
          "it is in the file now: a daemon that has not read a new one yet fails")
      ->type_name("FILE");
  line.app().add_flag(
      "--insecure", trust.insecure,
      "Over TLS believe anyone who answers, verifying nothing; for 127.0.0.0/8, ::1 "
      "and localhost alone");
  line.app()
      .add_option("--timeout", seconds, "Seconds that an answer may take [2]")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 3600.0));
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  const Options options = to_options(*values);
  const auto asked = url.empty() ? own_url(options) : Result<std::string>(url);
  if (!asked) return report(asked.error());
  const auto target = split_url(*asked);
  if (!target) return report(target.error());
  return target->is_tls ? ask_over_tls(*target, trust, options, seconds) : ask(*target, seconds);
}

}  // namespace lockstep
