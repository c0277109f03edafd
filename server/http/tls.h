// The server's side of TLS 1.2 and 1.3, over OpenSSL; of 1.2 what has forward secrecy and
// authenticated encryption. Nothing here blocks: a handshake goes as far as the bytes that have
// come allow, under the gate's deadline for heads. One call does a bounded amount of work, and a
// client that makes work without sending a byte of a request is given up.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/base/mutex.h"
#include "engine/base/result.h"
#include "server/http/transport.h"

struct ssl_ctx_st;

namespace lockstep {

// The last complaint of OpenSSL in this thread, which is forgotten with that; `otherwise` if it has
// not.
std::string openssl_reason(const char* otherwise = "unknown reason");

// The certificate and key that new connections use.
class TlsIdentity {
 public:
  // Fails with kInvalidInput, naming the file and what is wrong: it cannot be read, is no PEM, is
  // encrypted, or the key is not the certificate's.
  static Result<std::unique_ptr<TlsIdentity>> load(std::string certificate, std::string key);

  // Reads both files again and changes nothing yet; what it returns puts them into use. Any thread.
  Result<std::function<void()>> prepare_reload();

  // For a socket that a client has just connected to; null if there is no memory. Any thread. The
  // process must ignore SIGPIPE.
  std::unique_ptr<Transport> make_transport(int socket);

 private:
  using Context = std::shared_ptr<ssl_ctx_st>;  // a function that may be copied holds it

  TlsIdentity(std::string certificate, std::string key)
      : certificate_(std::move(certificate)), key_(std::move(key)) {}
  Result<Context> read() const;

  const std::string certificate_;
  const std::string key_;
  Mutex mutex_;
  Context context_ LOCKSTEP_GUARDED_BY(mutex_);  // connections hold references of their own
};

}  // namespace lockstep
