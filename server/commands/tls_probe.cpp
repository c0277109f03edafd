#include "server/commands/tls_probe.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>

#include "engine/base/descriptor.h"
#include "server/http/tls.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using ContextPointer = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using SessionPointer = std::unique_ptr<SSL, decltype(&SSL_free)>;

constexpr size_t kAnswerBytesMax = 64 * 1024;
constexpr const char* kNoReason = "the connection ended";

std::unexpected<Error> no_answer(std::string why) {
  return std::unexpected(Error{ErrorKind::kMachineRefused, std::move(why)});
}

bool is_address(const std::string& host) {
  std::array<unsigned char, 16> bytes{};
  return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

// False when the time is over.
bool wait_for(int socket, short events, Clock::time_point end) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

Result<Descriptor> connect_to(const std::string& host, uint16_t port, Clock::time_point end) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (status != 0) return no_answer(gai_strerror(status));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  int reason = ECONNREFUSED;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Descriptor socket(::socket(one->ai_family, one->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                               one->ai_protocol));
    if (!socket.is_open()) continue;
    reason = connect(socket.number(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (reason == EINPROGRESS) {
      socklen_t size = sizeof(reason);
      if (!wait_for(socket.number(), POLLOUT, end)) return no_answer("no connection in time");
      getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &reason, &size);
    }
    if (reason == 0) return socket;
  }
  return no_answer(std::strerror(reason));
}

Result<ContextPointer> make_context(const TlsTrust& trust) {
  ContextPointer context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (context == nullptr) return no_answer(openssl_reason(kNoReason));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  if (trust.certificates.empty()) return context;
  if (SSL_CTX_load_verify_file(context.get(), trust.certificates.c_str()) != 1) {
    return invalid_input("{} holds no certificates in PEM: {}", trust.certificates,
                         openssl_reason(kNoReason));
  }
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  // A certificate in the file is trusted as it is, no matter who has signed it.
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context.get()), X509_V_FLAG_PARTIAL_CHAIN);
  return context;
}

// One call of OpenSSL's until it is done; its result, or why there will be none.
template <typename Step>
Result<int> finish(SSL* session, int socket, Clock::time_point end, Step step) {
  while (true) {
    ERR_clear_error();
    const int result = step();
    if (result > 0) return result;
    switch (SSL_get_error(session, result)) {
      case SSL_ERROR_WANT_READ:
        if (!wait_for(socket, POLLIN, end)) return no_answer("no answer in time");
        break;
      case SSL_ERROR_WANT_WRITE:
        if (!wait_for(socket, POLLOUT, end)) return no_answer("no answer in time");
        break;
      case SSL_ERROR_ZERO_RETURN:
        return 0;
      default:
        if (const long verified = SSL_get_verify_result(session);
            verified != X509_V_OK && SSL_get_verify_mode(session) != SSL_VERIFY_NONE) {
          return no_answer(std::string("the server's certificate is not trusted: ") +
                           X509_verify_cert_error_string(verified));
        }
        return no_answer(openssl_reason(kNoReason));
    }
  }
}

Result<TlsAnswer> parse_answer(std::string_view text) {
  constexpr size_t kStatusAt = sizeof("HTTP/1.1 ") - 1;
  TlsAnswer answer;
  if (text.starts_with("HTTP/1.") && text.size() > kStatusAt) {
    std::from_chars(text.data() + kStatusAt, text.data() + text.size(), answer.status);
  }
  const size_t head_end = text.find("\r\n\r\n");
  if (answer.status == 0 || head_end == std::string_view::npos) {
    return no_answer("what answers speaks no HTTP");
  }
  answer.body = text.substr(head_end + 4);
  return answer;
}

}  // namespace

bool is_loopback(const std::string& host) {
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) {
    return (ntohl(address.s_addr) >> 24U) == 127;
  }
  return host == "::1" || host == "localhost";
}

Result<TlsAnswer> get_over_tls(const std::string& host, uint16_t port, const std::string& path,
                               const TlsTrust& trust, double seconds) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  auto context = make_context(trust);
  if (!context) return std::unexpected(context.error());
  auto socket = connect_to(host, port, end);
  if (!socket) return std::unexpected(socket.error());
  const SessionPointer session(SSL_new(context->get()), SSL_free);
  if (session == nullptr || SSL_set_fd(session.get(), socket->number()) != 1) {
    return no_answer(openssl_reason(kNoReason));
  }
  if (!is_address(host)) SSL_set_tlsext_host_name(session.get(), host.c_str());
  if (trust.checks_name) {
    X509_VERIFY_PARAM* rules = SSL_get0_param(session.get());
    if (is_address(host)) {
      X509_VERIFY_PARAM_set1_ip_asc(rules, host.c_str());
    } else {
      X509_VERIFY_PARAM_set1_host(rules, host.c_str(), host.size());
    }
  }
  SSL* const raw = session.get();
  const int number = socket->number();
  const auto shaken = finish(raw, number, end, [&] { return SSL_connect(raw); });
  if (!shaken) return std::unexpected(shaken.error());
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n\r\n", path,
                  host.find(':') == std::string::npos ? host : "[" + host + "]", port);
  const auto sent = finish(raw, number, end, [&] {
    return SSL_write(raw, request.data(), static_cast<int>(request.size()));
  });
  if (!sent) return std::unexpected(sent.error());
  std::string text;
  std::array<char, 4096> part{};
  while (text.size() < kAnswerBytesMax) {
    const auto count = finish(raw, number, end, [&] {
      return SSL_read(raw, part.data(), static_cast<int>(part.size()));
    });
    if (!count) return std::unexpected(count.error());
    if (*count == 0) break;
    text.append(part.data(), static_cast<size_t>(*count));
  }
  return parse_answer(text);
}

}  // namespace lockstep
