// Two ends of a stream between hosts, both in this process.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/check.h"
#include "engine/collectives/host_stream.h"

namespace lockstep {

struct ConnectedHosts {
  std::unique_ptr<HostStream> accepted;
  std::unique_ptr<HostStream> connected;
};

inline SecretKey some_secret(unsigned char first) {
  SecretKey secret = {};
  secret[0] = std::byte{first};
  return secret;
}

// Long enough for any machine; what a test does not wait for costs no time.
inline HostStreamOptions host_options(bool encrypted) {
  HostStreamOptions options;
  options.patience = std::chrono::seconds(60);
  if (encrypted) options.secret = some_secret(1);
  return options;
}

inline std::string at_port(const HostListener& listener, const std::string& host = "127.0.0.1") {
  return host + ":" + std::to_string(listener.port());
}

// Both threads' results: `first` runs in one of its own.
template <typename First, typename Second>
auto both_at_once(First first, Second second) {
  decltype(first()) one;
  std::thread thread([&] { one = first(); });
  auto two = second();
  thread.join();
  return std::pair(std::move(one), std::move(two));
}

// Tries again as long as "a later try may succeed": strangers can have kept a busy machine.
inline Result<std::unique_ptr<HostStream>> connect_patiently(const std::string& address,
                                                             const HostStreamOptions& options) {
  while (true) {
    auto stream = connect_host(address, options);
    if (stream || stream.error().kind != ErrorKind::kUnavailable) return stream;
  }
}

inline ConnectedHosts connect_hosts(const HostStreamOptions& accepting,
                                    const HostStreamOptions& connecting,
                                    const std::string& host = "127.0.0.1") {
  auto listener = HostListener::open(host + ":0", accepting);
  CHECK(listener.has_value(), "cannot listen");
  const std::string address = at_port(**listener, host);
  auto [connected, accepted] =
      both_at_once([&] { return std::optional(connect_patiently(address, connecting)); },
                   [&] { return (*listener)->accept(std::chrono::minutes(5)); });
  CHECK(accepted && *accepted && connected->has_value(), "hosts do not connect");
  return {.accepted = std::move(*accepted), .connected = std::move(**connected)};
}

inline std::vector<std::byte> random_bytes(std::mt19937_64& random, size_t count) {
  std::vector<std::byte> bytes(count);
  for (auto& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace lockstep
