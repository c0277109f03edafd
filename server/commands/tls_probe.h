// One GET over TLS, for the health check: a client of a few lines, since cpp-httplib is built
// without TLS.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/result.h"

namespace lockstep {

// Whom the client believes to be the daemon.
struct TlsTrust {
  // PEM: what the server's certificate is or is signed by. Empty: nothing is verified.
  std::string certificates;
  bool checks_name = true;  // and the certificate must name the host that was asked
};

struct TlsAnswer {
  int status = 0;
  std::string body;  // its first 64 KiB
};

// Blocks for `seconds` at most. kInvalidInput for a file that cannot be used, kMachineRefused with
// the reason for everything else that is no answer. SIGPIPE must be ignored.
Result<TlsAnswer> get_over_tls(const std::string& host, uint16_t port, const std::string& path,
                               const TlsTrust& trust, double seconds);

// Whether a host is this machine's loopback, by its spelling: 127.*.*.*, ::1, localhost.
bool is_loopback(const std::string& host);

}  // namespace lockstep
