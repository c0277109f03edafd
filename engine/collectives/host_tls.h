// TLS 1.3 with an external pre-shared key (RFC 8446, sections 2.2 and 4.2.11), by OpenSSL: no
// certificates; the keys of a connection come from an exchange of its own (psk_dhe_ke), so that who
// learns the secret later cannot read what was recorded.
#pragma once

#include <memory>

#include "engine/base/secret.h"
#include "engine/collectives/host_channel.h"

namespace lockstep {

class HostTls {
 public:
  virtual ~HostTls() = default;
  // Fails with kMachineRefused where libssl does not have what it takes.
  static Result<std::unique_ptr<HostTls>> create(const SecretKey& secret);

  // Over a connected socket that does not block. This lives until the hands are shaken, at least.
  virtual Result<std::unique_ptr<HostChannel>> accepting(Descriptor socket) = 0;
  virtual Result<std::unique_ptr<HostChannel>> connecting(Descriptor socket) = 0;
};

}  // namespace lockstep
