// How bytes go over a connected, non-blocking socket: as they are, or through TLS. The gate's
// thread only. Does not own the socket.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

class Transport {
 public:
  enum class Status {
    kDone,     // `bytes` of them went, at least one (nothing for a handshake that is complete)
    kBlocked,  // again when the socket is readable, or writable if `wants_write`
    kEnded,    // the peer sends no more
    kFailed,   // the connection is of no more use
    kWasted,   // the same: the peer makes work and sends no bytes of its own
  };
  struct Outcome {
    Status status = Status::kDone;
    size_t bytes = 0;
    bool wants_write = false;
  };

  virtual ~Transport() = default;

  // Whether handshake() must have given kDone before bytes may go.
  virtual bool needs_handshake() const = 0;
  virtual Outcome handshake() = 0;
  // The hint to an unencrypted client if the handshake has failed because it is one; else "".
  virtual std::string_view hint_to_client() const = 0;

  // Never leaves received bytes behind where epoll does not see them, if `size` is 16 KiB or more.
  virtual Outcome receive(char* bytes, size_t size) = 0;
  virtual Outcome send(const char* bytes, size_t size) = 0;
  // Tells the peer that nothing follows.
  virtual void end_sending() = 0;
};

// Bytes as they are.
class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(int socket) : socket_(socket) {}

  bool needs_handshake() const override { return false; }
  Outcome handshake() override { return {}; }
  std::string_view hint_to_client() const override { return ""; }
  Outcome receive(char* bytes, size_t size) override;
  Outcome send(const char* bytes, size_t size) override;
  void end_sending() override;

 private:
  const int socket_;
};

}  // namespace lockstep
