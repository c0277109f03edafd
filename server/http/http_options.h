// The settings of one server, and the functions that it calls.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_limits.h"
#include "server/http/http_request.h"
#include "server/http/listener.h"
#include "server/http/networks.h"

namespace lockstep {

// Most of it is empty for a request that was refused before its head was read.
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
  std::any note;          // HttpResponse::set_note(); empty where there is none
  bool was_whole = true;  // false: refused before, which costs its client next to nothing
};

// The body of the answer to a request that reaches no handler: the api layer words the errors.
// `path` as far as it is known; "" if nothing of it is.
using HttpErrorBody = std::function<std::string(std::string_view path, int status,
                                                std::string_view message)>;  // a JSON text

struct HttpOptions {
  // An address or a name; "unix:/path"; or "systemd": the sockets that the service manager passes.
  std::string host = "127.0.0.1";
  uint16_t port = 8080;                // 0: any free one
  uint32_t socket_mode = 0660;         // permissions of a Unix socket
  std::string host_option = "--host";  // what an error about the address is told of
  // Whether the sockets that the service manager has passed go before host and port.
  bool takes_passed_sockets = true;
  Environment environment = {};    // the process's, where it says which sockets those are
  std::string gate_name = "gate";  // of its thread; at most 15 bytes
  // Files in PEM; with both, clients over IP speak TLS 1.2 or newer. A Unix socket stays as it is.
  std::string tls_certificate;  // the server's own first, then those that lead to its issuer
  std::string tls_key;
  // Origins whose pages may read answers ("https://chat.example.org"), or "*" for any.
  std::vector<std::string> cors_origins;
  HttpLimits limits;
  // Gives the address of a client that connects; tests simulate networks.
  std::function<PeerAddress(const sockaddr_storage&)> address_of = PeerAddress::of;
  HttpAuthorize authorize;  // none: everything is let in, without a principal
  HttpErrorBody error_body;
  // Called once for each request, by the thread that served it, or by the gate's.
  std::function<void(const HttpRecord&)> on_finished;
};

}  // namespace lockstep
