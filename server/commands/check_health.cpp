// lockstepd check-health: asks a daemon on this machine whether it serves; for the health checks of
// containers, whose images hold no other HTTP client.
#include <httplib.h>

#include <chrono>
#include <iostream>
#include <string>
#include <utility>

#include "server/commands/command_line.h"
#include "server/commands/commands.h"

namespace lockstep {
namespace {

constexpr std::string_view kReadyPath = "/health/ready";
constexpr std::string_view kUnix = "unix:";

// Where a daemon with these options answers, asked from the machine it runs on.
Result<std::string> own_url(const Options& options) {
  std::string host = options.http.host;
  if (host.starts_with(kUnix)) return host;
  if (host == "systemd") {
    return invalid_input("--host systemd does not say where the sockets are: give --url");
  }
  if (!options.http.tls_certificate.empty()) {
    return invalid_input(
        "check-health speaks no TLS, and with --tls-certificate the daemon speaks nothing else "
        "over IP: ask with a client that does, such as curl --cacert");
  }
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::") host = "::1";
  if (host.find(':') != std::string::npos) host = fmt::format("[{}]", host);
  return fmt::format("http://{}:{}{}", host, options.http.port, kReadyPath);
}

// "http://host:port", or "unix:/socket", and "/path", as the client wants them.
Result<std::pair<std::string, std::string>> split_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with(kUnix) && url.size() > kUnix.size()) {
    return std::pair(url, std::string(kReadyPath));
  }
  if (url.starts_with("https://")) {
    return invalid_input("--url: check-health speaks no TLS; ask with a client that does");
  }
  if (!url.starts_with(kScheme) || url.size() == kScheme.size()) {
    return invalid_input("--url: \"{}\" is no URL that begins with {} or {}", url, kScheme, kUnix);
  }
  const size_t slash = url.find('/', kScheme.size());
  if (slash == std::string::npos) return std::pair(url, std::string(kReadyPath));
  return std::pair(url.substr(0, slash), url.substr(slash));
}

// 0 for an answer of 2xx. Says what came instead, which ends up in the container's health log.
int ask(const std::string& server, const std::string& path, double seconds) {
  const auto limit = std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  const bool is_unix = server.starts_with(kUnix);
  httplib::Client client(is_unix ? server.substr(kUnix.size()) : server);
  if (is_unix) client.set_address_family(AF_UNIX);
  client.set_connection_timeout(limit);
  client.set_read_timeout(limit);
  client.set_write_timeout(limit);
  client.set_max_timeout(std::chrono::duration_cast<std::chrono::milliseconds>(limit));
  const auto answer = client.Get(path);
  if (!answer) {
    std::cerr << fmt::format("lockstepd: {}{}: {}\n", server, path,
                             httplib::to_string(answer.error()));
    return 1;
  }
  std::cout << answer->status << ' ' << answer->body << '\n';
  return answer->status >= 200 && answer->status < 300 ? 0 : 1;
}

}  // namespace

int run_check_health(const std::vector<std::string>& arguments) {
  CommandLine line(
      "check-health",
      "Asks a running daemon whether it is ready. Exit codes: 0 if it is; 1 if not, or "
      "if nothing answers; 2 for what was given.",
      kCheckHealth);
  std::string url;
  double seconds = 2;
  line.app()
      .add_option("--url", url,
                  "What to ask: http://HOST:PORT/PATH, or unix:/SOCKET; without it /health/ready "
                  "where the options say that the daemon listens")
      ->type_name("URL");
  line.app()
      .add_option("--timeout", seconds, "Seconds that an answer may take [2]")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 3600.0));
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  const auto asked = url.empty() ? own_url(to_options(*values)) : Result<std::string>(url);
  if (!asked) return report(asked.error());
  const auto parts = split_url(*asked);
  if (!parts) return report(parts.error());
  return ask(parts->first, parts->second, seconds);
}

}  // namespace lockstep
