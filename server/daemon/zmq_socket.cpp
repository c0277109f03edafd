#include <ifaddrs.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/dynamic_library.h"
#include "server/daemon/event_socket.h"
#include "server/http/listener.h"

namespace lockstep {
namespace {

// Messages that are kept for a subscriber that does not read: some tens of MiB at most, as the
// publisher bounds a message. Then it loses some, and their numbers tell it.
constexpr int kMessagesKept = 1000;
// The most that a subscriber may send at a time: a topic that it wants.
constexpr int64_t kSubscriptionBytesMost = 512;
constexpr int kSubscriptionsKept = 16;  // that have not been looked at
// After so long one that does not answer is forgotten.
constexpr int kHandshakeMilliseconds = 5'000;
constexpr int kHeartbeatMilliseconds = 30'000;

// The functions of libzmq that are called.
struct ZmqLibrary {
  decltype(&zmq_ctx_new) make_context = nullptr;
  decltype(&zmq_ctx_term) end_context = nullptr;
  decltype(&zmq_socket) make_socket = nullptr;
  decltype(&zmq_close) close = nullptr;
  decltype(&zmq_setsockopt) set_option = nullptr;
  decltype(&zmq_getsockopt) get_option = nullptr;
  decltype(&zmq_bind) bind = nullptr;
  decltype(&zmq_send) send = nullptr;
  decltype(&zmq_strerror) error_text = nullptr;
  decltype(&zmq_errno) error_number = nullptr;

  std::string last_error() const { return error_text(error_number()); }
};

Result<ZmqLibrary> load_zmq() {
  const auto library = DynamicLibrary::open({"libzmq.so.5"});
  if (!library) return std::unexpected(library.error());
  ZmqLibrary calls;
  FunctionTaker take(*library);
  take("zmq_ctx_new", calls.make_context);
  take("zmq_ctx_term", calls.end_context);
  take("zmq_socket", calls.make_socket);
  take("zmq_close", calls.close);
  take("zmq_setsockopt", calls.set_option);
  take("zmq_getsockopt", calls.get_option);
  take("zmq_bind", calls.bind);
  take("zmq_send", calls.send);
  take("zmq_strerror", calls.error_text);
  take("zmq_errno", calls.error_number);
  if (take.missing() != nullptr) return machine_refused("libzmq.so.5 has no {}", take.missing());
  return calls;
}

class ZmqSocket final : public EventSocket {
 public:
  explicit ZmqSocket(const ZmqLibrary& zmq) : zmq_(zmq) {}
  ~ZmqSocket() override {
    if (socket_ != nullptr) zmq_.close(socket_);
    if (context_ != nullptr) zmq_.end_context(context_);
  }
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  Result<void> bind(const std::string& endpoint) {
    const auto refused = [&] {
      return machine_refused("KV events cannot be published at {} (--kv-events): {}", endpoint,
                             zmq_.last_error());
    };
    context_ = zmq_.make_context();
    if (context_ == nullptr) return refused();
    socket_ = zmq_.make_socket(context_, ZMQ_PUB);
    if (socket_ == nullptr) return refused();
    // Messages that subscribers have not read at the end of the process are lost.
    const bool is_set = set(ZMQ_LINGER, 0) && set(ZMQ_SNDHWM, kMessagesKept) &&
                        set(ZMQ_MAXMSGSIZE, kSubscriptionBytesMost) &&
                        set(ZMQ_RCVHWM, kSubscriptionsKept) && set(ZMQ_TCP_KEEPALIVE, 1) &&
                        set(ZMQ_HANDSHAKE_IVL, kHandshakeMilliseconds) &&
                        set(ZMQ_HEARTBEAT_IVL, kHeartbeatMilliseconds) &&
                        set(ZMQ_IPV6, endpoint.find('[') != std::string::npos ? 1 : 0);
    if (!is_set || zmq_.bind(socket_, endpoint.c_str()) != 0) return refused();
    std::array<char, 1024> bound{};
    size_t size = bound.size();
    if (zmq_.get_option(socket_, ZMQ_LAST_ENDPOINT, bound.data(), &size) != 0) return refused();
    endpoint_ = bound.data();
    return {};
  }

  bool send(std::string_view topic, std::string_view sequence, std::string_view payload) override {
    if (!send_frame(topic, ZMQ_SNDMORE)) return false;
    if (send_frame(sequence, ZMQ_SNDMORE) && send_frame(payload, 0)) return true;
    send_frame({}, 0);  // the next message begins by itself
    return false;
  }

  // libzmq takes note of them in calls on the socket alone.
  void tend() override {
    int events = 0;
    size_t size = sizeof events;
    zmq_.get_option(socket_, ZMQ_EVENTS, &events, &size);
  }

  std::string endpoint() const override { return endpoint_; }

 private:
  template <typename Value>
  bool set(int option, Value value) {
    return zmq_.set_option(socket_, option, &value, sizeof value) == 0;
  }
  bool send_frame(std::string_view frame, int flags) {
    return zmq_.send(socket_, frame.data(), frame.size(), flags | ZMQ_DONTWAIT) >= 0;
  }

  const ZmqLibrary zmq_;
  void* context_ = nullptr;
  void* socket_ = nullptr;
  std::string endpoint_;
};

// libzmq looks an address up among the machine's interfaces, and aborts the process where it may
// not list them.
Result<void> check_interfaces(const std::string& endpoint) {
  if (!endpoint.starts_with(kTcpScheme) || endpoint[kTcpScheme.size()] == '*') return {};
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) == 0) {
    ::freeifaddrs(interfaces);
    return {};
  }
  return machine_refused(
      "KV events cannot be published at {} (--kv-events): the machine's interfaces cannot be "
      "listed "
      "({}). Allow it (under systemd RestrictAddressFamilies=AF_NETLINK in a drop-in), or give * "
      "as "
      "the address",
      endpoint, std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<EventSocket>> bind_event_socket(const std::string& endpoint) {
  if (auto listed = check_interfaces(endpoint); !listed) return std::unexpected(listed.error());
  const std::string path(socket_path_of(endpoint));
  if (!path.empty()) {  // libzmq would remove whatever is there
    const auto removed = remove_stale_socket(path);
    if (!removed) {
      return machine_refused("KV events cannot be published (--kv-events): {}",
                             removed.error().message);
    }
  }
  const auto zmq = load_zmq();
  if (!zmq) {
    return machine_refused(
        "KV events cannot be published at {} (--kv-events): {}. Install it (Debian's libzmq5)",
        endpoint, zmq.error().message);
  }
  auto socket = std::make_unique<ZmqSocket>(*zmq);
  if (auto bound = socket->bind(endpoint); !bound) return std::unexpected(bound.error());
  return socket;
}

}  // namespace lockstep
