#include "engine/collectives/ucx_link.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/collectives/host_channel.h"
#include "engine/collectives/ucx_library.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// How often a wait looks whether the other host has gone and whether it was shut down.
constexpr auto kLookInterval = std::chrono::milliseconds(20);
constexpr auto kCloseMost = std::chrono::milliseconds(500);
constexpr size_t kAddressBytesMost = size_t{1} << 16U;
constexpr ucp_tag_t kTag = 1;

// One operation in progress. Null: none, or it was done at once.
struct Request {
  void* pointer = nullptr;
  bool is_done = false;
  bool receives = false;
};

class UcxLink : public HostLink {
 public:
  UcxLink(const UcxLibrary& ucx, std::unique_ptr<HostStream> stream)
      : ucx_(ucx),
        stream_(std::move(stream)),
        patience_(stream_->patience()),
        spin_time_(stream_->spins() ? Clock::duration(kSpinTime) : Clock::duration::zero()) {}

  ~UcxLink() override {
    if (endpoint_ != nullptr) close_endpoint();
    if (worker_ != nullptr) ucx_.worker_destroy(worker_);
    if (context_ != nullptr) ucx_.cleanup(context_);
  }
  UcxLink(const UcxLink&) = delete;
  UcxLink& operator=(const UcxLink&) = delete;

  Result<void> open() {
    ucp_config_t* config = nullptr;
    if (auto read = check(ucx_.config_read(nullptr, nullptr, &config)); !read) return read;
    // The stream shows whether the other host is there; UCX's own looks would count as bytes moved.
    auto set = check(ucx_.config_modify(config, "KEEPALIVE_INTERVAL", "inf"));
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    const ucs_status_t made = ucx_.init(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
    ucx_.config_release(config);
    if (auto checked = check(made); !checked) return checked;
    if (!set) return set;
    ucp_worker_params_t worker = {};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    if (auto created = check(ucx_.worker_create(context_, &worker, &worker_)); !created) {
      return created;
    }
    if (auto got = check(ucx_.worker_descriptor(worker_, &descriptor_)); !got) return got;
    auto address = exchange_addresses();
    if (!address) return std::unexpected(address.error());
    return connect(*address);
  }

  Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) override {
    if (failure_) return std::unexpected(*failure_);
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    Request received{.receives = true};
    Request sent;
    came_ = {};
    if (!in.empty()) start(received, receive(in));
    if (!out.empty()) start(sent, send(out));
    if (out.empty()) sent.is_done = true;
    if (in.empty()) received.is_done = true;
    Result<void> done = wait_for(sent, received);
    // Both hosts know how much it is, so one of them does not know what it does.
    if (done && came_.length != in.size()) {
      done = fail(fmt::format("{} bytes came in an exchange of {}: the hosts' plans differ",
                              came_.length, in.size()));
    }
    if (!done) {
      // Nothing may write into the caller's memory any more.
      give_up(sent, received);
    }
    return done;
  }

  void shut_down() noexcept override {
    is_shut_down_.store(true, std::memory_order_relaxed);
    stream_->shut_down();
  }

  bool buffers(size_t /*bytes*/) const override { return false; }  // it may wait for the receiver
  std::string_view transport() const override { return "ucx"; }

 private:
  Result<void> check(ucs_status_t status) const {
    if (status == UCS_OK) return {};
    return machine_refused("no link by UCX to host {}: {}", stream_->peer(),
                           ucx_.status_text(status));
  }

  Result<std::vector<std::byte>> exchange_addresses() {
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    if (auto got = check(ucx_.worker_address(worker_, &address, &bytes)); !got) {
      return std::unexpected(got.error());
    }
    const std::span own(reinterpret_cast<const std::byte*>(address), bytes);
    uint64_t other_bytes = 0;
    const uint64_t own_bytes = bytes;
    auto told = stream_->exchange(std::as_bytes(std::span(&own_bytes, 1)),
                                  std::as_writable_bytes(std::span(&other_bytes, 1)));
    std::vector<std::byte> other;
    if (told && (other_bytes == 0 || other_bytes > kAddressBytesMost)) {
      told = machine_refused("host {} tells an address of {} bytes", stream_->peer(), other_bytes);
    }
    if (told) {
      other.resize(other_bytes);
      told = stream_->exchange(own, other);
    }
    ucx_.release_address(worker_, address);
    if (!told) return std::unexpected(told.error());
    return other;
  }

  Result<void> connect(const std::vector<std::byte>& address) {
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {.cb = note_error, .arg = this};
    return check(ucx_.endpoint_create(worker_, &params, &endpoint_));
  }

  // Called by worker_progress().
  static void note_error(void* self, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxLink*>(self)->endpoint_status_ = status;
  }

  ucs_status_ptr_t receive(std::span<std::byte> in) {
    ucp_request_param_t params = {};
    // A request in any case: of one that is done at once UCX 1.13 does not tell the length.
    params.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    return ucx_.tag_receive(worker_, in.data(), in.size(), kTag, ~ucp_tag_t{0}, &params);
  }
  ucs_status_ptr_t send(std::span<const std::byte> out) {
    const ucp_request_param_t params = {};
    return ucx_.tag_send(endpoint_, out.data(), out.size(), kTag, &params);
  }

  void start(Request& request, ucs_status_ptr_t pointer) {
    if (UCS_PTR_IS_ERR(pointer)) endpoint_status_ = UCS_PTR_STATUS(pointer);
    request.pointer = UCS_PTR_IS_PTR(pointer) ? pointer : nullptr;
    request.is_done = request.pointer == nullptr;
  }

  void look_at(Request& request) {
    if (request.is_done) return;
    const ucs_status_t status = request.receives ? ucx_.receive_status(request.pointer, &came_)
                                                 : ucx_.request_status(request.pointer);
    if (status == UCS_INPROGRESS) return;
    if (status != UCS_OK) endpoint_status_ = status;
    ucx_.request_free(request.pointer);
    request.pointer = nullptr;
    request.is_done = true;
  }

  Result<void> wait_for(Request& sent, Request& received) {
    Clock::time_point quiet_since = Clock::now();
    Clock::time_point looked = quiet_since;
    while (true) {
      const bool moved = ucx_.worker_progress(worker_) != 0;
      look_at(sent);
      look_at(received);
      if (endpoint_status_ == UCS_ERR_MESSAGE_TRUNCATED) {
        return fail("more bytes came than the exchange has: the hosts' plans differ");
      }
      if (endpoint_status_ != UCS_OK) return fail(ucx_.status_text(endpoint_status_));
      if (sent.is_done && received.is_done) return {};
      const auto now = Clock::now();
      if (moved) quiet_since = now;
      const auto quiet = now - quiet_since;
      if (quiet >= patience_) {
        return fail(fmt::format("no byte has moved for {} ms", patience_.count()));
      }
      if (quiet < spin_time_) {
        spin_once(quiet);
        continue;
      }
      if (now - looked >= kLookInterval) {
        looked = now;
        if (auto there = look_at_host(); !there) return there;
      }
      if (!moved) sleep(patience_ - quiet);
    }
  }

  // Nothing comes over the stream any more, but its end.
  Result<void> look_at_host() {
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    const auto there = stream_->wait_readable(std::chrono::milliseconds(0));
    if (!there) return fail(there.error().message);
    return {};
  }

  // Until UCX has something to do, the stream ends, or it is time to look again.
  void sleep(Clock::duration most) {
    if (ucx_.worker_arm(worker_) != UCS_OK) return;
    pollfd watched = {.fd = descriptor_, .events = POLLIN, .revents = 0};
    const auto time = std::min<Clock::duration>(most, kLookInterval);
    poll(&watched, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(time).count()));
  }

  void give_up(Request& sent, Request& received) {
    for (Request* each : {&sent, &received}) {
      if (each->pointer != nullptr) ucx_.request_cancel(worker_, each->pointer);
    }
    // The endpoint's forced end ends what is in progress on it, the sending with it.
    close_endpoint();
    const auto deadline = Clock::now() + kCloseMost;
    while (!(sent.is_done && received.is_done) && Clock::now() < deadline) {
      ucx_.worker_progress(worker_);
      look_at(sent);
      look_at(received);
    }
  }

  void close_endpoint() {
    ucp_request_param_t params = {};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    Request closing;
    const auto pointer = ucx_.endpoint_close(std::exchange(endpoint_, nullptr), &params);
    if (!UCS_PTR_IS_PTR(pointer)) return;
    closing.pointer = pointer;
    const auto deadline = Clock::now() + kCloseMost;
    while (!closing.is_done && Clock::now() < deadline) {
      ucx_.worker_progress(worker_);
      look_at(closing);
    }
  }

  Result<void> fail(const std::string& reason) {
    failure_ =
        machine_refused("the connection to host {} is lost: {}", stream_->peer(), reason).error();
    return std::unexpected(*failure_);
  }

  const UcxLibrary& ucx_;
  const std::unique_ptr<HostStream> stream_;
  const std::chrono::milliseconds patience_;
  const Clock::duration spin_time_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int descriptor_ = -1;            // the worker's
  ucp_tag_recv_info_t came_ = {};  // of the exchange at hand, once it is there
  ucs_status_t endpoint_status_ = UCS_OK;
  std::atomic<bool> is_shut_down_ = false;
  std::optional<Error> failure_;
};

}  // namespace

std::string ucx_obstacle() {
  const auto& library = ucx_library();
  return library ? std::string() : library.error().message;
}

Result<std::unique_ptr<HostLink>> make_ucx_link(std::unique_ptr<HostStream> stream, size_t) {
  const auto& library = ucx_library();
  if (!library) return std::unexpected(library.error());
  auto link = std::make_unique<UcxLink>(*library, std::move(stream));
  if (auto opened = link->open(); !opened) return std::unexpected(opened.error());
  return link;
}

}  // namespace lockstep
