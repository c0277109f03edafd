#include "engine/collectives/ucx_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "engine/collectives/host_channel.h"
#include "engine/collectives/message_pieces.h"
#include "engine/collectives/ucx_library.h"
#include "engine/collectives/ucx_worker.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// How often a wait looks whether the other host has gone and whether it was shut down.
constexpr auto kLookInterval = std::chrono::milliseconds(20);
constexpr auto kCloseMost = std::chrono::milliseconds(500);
constexpr size_t kAddressBytesMost = size_t{1} << 16U;

// The ends of a link tell one another theirs, over the stream; the address follows.
struct Place {
  uint64_t number = 0;  // UcxWorker::new_link_number()
  uint64_t address_bytes = 0;

  ucp_tag_t tag() const { return 2 * number; }            // of messages to it
  ucp_tag_t piece_tag() const { return 2 * number + 1; }  // of pieces to it, which come among them
};

// One operation in progress. Null: none, or it was done at once.
struct Request {
  void* pointer = nullptr;
  bool is_done = true;
  bool receives = false;
};

class UcxLink : public HostLink, private MessagePort {
 public:
  UcxLink(const UcxLibrary& ucx, std::shared_ptr<UcxWorker> worker,
          std::unique_ptr<HostStream> stream)
      : ucx_(ucx),
        worker_(std::move(worker)),
        stream_(std::move(stream)),
        patience_(stream_->patience()),
        spin_time_(stream_->spins() ? Clock::duration(kSpinTime) : Clock::duration::zero()),
        pieces_(std::make_unique<MessagePieces>(static_cast<MessagePort&>(*this), *stream_)) {}

  ~UcxLink() override {
    if (!end_all({&piece_received_, pieces_sent_.data(), pieces_sent_.data() + 1})) {
      worker_->abandon(std::move(pieces_));
    }
    if (endpoint_ != nullptr) close_endpoint();
  }
  UcxLink(const UcxLink&) = delete;
  UcxLink& operator=(const UcxLink&) = delete;

  const std::shared_ptr<UcxWorker>& worker() const { return worker_; }

  Result<void> open() {
    auto address = exchange_places();
    if (!address) return std::unexpected(address.error());
    return connect(*address);
  }

  Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) override {
    if (failure_) return std::unexpected(*failure_);
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    Request received{.receives = true};
    Request sent;
    came_ = {};
    if (!in.empty()) start(received, receive(in, own_.tag()));
    if (!out.empty()) start(sent, send(out, other_.tag()));
    Result<void> done = wait_for(sent, received);
    // Both hosts know how much it is, so one of them does not know what it does.
    if (done && came_.length != in.size()) {
      done = fail(fmt::format("{} bytes came in an exchange of {}: the hosts' plans differ",
                              came_.length, in.size()));
    }
    // Nothing may write into the caller's memory any more.
    if (!done && !end_all({&sent, &received})) worker_->abandon(nullptr);
    return done;
  }

  void shut_down() noexcept override {
    is_shut_down_.store(true, std::memory_order_relaxed);
    stream_->shut_down();
  }

  bool buffers(size_t /*bytes*/) const override { return false; }  // it may wait for the receiver
  BytePieces& pieces() override { return *pieces_; }
  std::string_view transport() const override { return "ucx"; }

 private:
  std::unexpected<Error> no_link(const Error& error) const {
    return machine_refused("no link by UCX to host {}: {}", stream_->peer(), error.message);
  }

  // Returns the other worker's address.
  Result<std::vector<std::byte>> exchange_places() {
    const auto address = worker_->address();
    if (!address) return no_link(address.error());
    own_ = {.number = UcxWorker::new_link_number(), .address_bytes = address->size()};
    auto told = stream_->exchange(std::as_bytes(std::span(&own_, 1)),
                                  std::as_writable_bytes(std::span(&other_, 1)));
    if (!told) return std::unexpected(told.error());
    if (other_.address_bytes == 0 || other_.address_bytes > kAddressBytesMost) {
      return machine_refused("host {} tells an address of {} bytes", stream_->peer(),
                             other_.address_bytes);
    }
    std::vector<std::byte> other(other_.address_bytes);
    told = stream_->exchange(*address, other);
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
    const ucs_status_t status = ucx_.endpoint_create(worker_->get(), &params, &endpoint_);
    if (status == UCS_OK) return {};
    return machine_refused("no link by UCX to host {}: {}", stream_->peer(),
                           ucx_.status_text(status));
  }

  // Called by worker_progress().
  static void note_error(void* self, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxLink*>(self)->endpoint_status_ = status;
  }

  Result<void> begin_send(size_t slot, std::span<const std::byte> bytes) override {
    if (auto there = progress(); !there) return there;
    start(pieces_sent_[slot], send(bytes, other_.piece_tag()));
    return {};
  }

  Result<bool> has_sent(size_t slot) override {
    if (auto there = progress(); !there) return std::unexpected(there.error());
    look_at(pieces_sent_[slot]);
    return pieces_sent_[slot].is_done;
  }

  Result<std::optional<size_t>> receive(std::span<std::byte> into) override {
    if (auto there = progress(); !there) return std::unexpected(there.error());
    if (!awaits_piece_) {
      start(piece_received_, receive(into, own_.piece_tag()));
      awaits_piece_ = true;
    }
    look_at(piece_received_);
    if (auto sound = look_at_endpoint(); !sound) return std::unexpected(sound.error());
    if (!piece_received_.is_done) return std::nullopt;
    awaits_piece_ = false;
    return came_.length;
  }

  // Moves all links on, and looks now and then whether the host is there.
  Result<void> progress() override {
    if (failure_) return std::unexpected(*failure_);
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    worker_->progress();
    if (auto sound = look_at_endpoint(); !sound) return sound;
    const auto now = Clock::now();
    if (now - looked_ < kLookInterval) return {};
    looked_ = now;
    return look_at_host();
  }

  ucs_status_ptr_t receive(std::span<std::byte> in, ucp_tag_t tag) {
    ucp_request_param_t params = {};
    // A request in any case: of one that is done at once UCX 1.13 does not tell the length.
    params.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    return ucx_.tag_receive(worker_->get(), in.data(), in.size(), tag, ~ucp_tag_t{0}, &params);
  }
  ucs_status_ptr_t send(std::span<const std::byte> out, ucp_tag_t tag) {
    const ucp_request_param_t params = {};
    return ucx_.tag_send(endpoint_, out.data(), out.size(), tag, &params);
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
    looked_ = quiet_since;
    while (true) {
      // Those of other links too: the other hosts are no more than a step ahead, so they end.
      const bool moved = worker_->progress();
      look_at(sent);
      look_at(received);
      if (auto sound = look_at_endpoint(); !sound) return sound;
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
      if (now - looked_ >= kLookInterval) {
        looked_ = now;
        if (auto there = look_at_host(); !there) return there;
      }
      if (!moved) worker_->sleep(std::min<Clock::duration>(patience_ - quiet, kLookInterval));
    }
  }

  Result<void> look_at_endpoint() {
    if (worker_->is_abandoned()) return fail("UCX does not end another link's exchange");
    if (endpoint_status_ == UCS_OK) return {};
    if (endpoint_status_ == UCS_ERR_MESSAGE_TRUNCATED) {
      return fail("more bytes came than the exchange has: the hosts' plans differ");
    }
    return fail(ucx_.status_text(endpoint_status_));
  }

  // Nothing comes over the stream any more but a pass's last word, and its end behind that.
  Result<void> look_at_host() {
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    const auto there = stream_->wait_readable(std::chrono::milliseconds(0));
    if (!there) return fail(there.error().message);
    return {};
  }

  // Ends the link where one of these is in progress; whether they are over then.
  bool end_all(std::initializer_list<Request*> requests) {
    const auto are_done = [&] {
      return std::ranges::all_of(requests, [](const Request* each) { return each->is_done; });
    };
    if (are_done()) return true;
    for (const Request* each : requests) {
      if (!each->is_done) ucx_.request_cancel(worker_->get(), each->pointer);
    }
    // The endpoint's forced end ends what is in progress on it, the sending with it.
    if (endpoint_ != nullptr) close_endpoint();
    return move_until([&] {
      for (Request* each : requests) look_at(*each);
      return are_done();
    });
  }

  void close_endpoint() {
    ucp_request_param_t params = {};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    Request closing;
    start(closing, ucx_.endpoint_close(std::exchange(endpoint_, nullptr), &params));
    move_until([&] {
      look_at(closing);
      return closing.is_done;
    });
  }

  // Moves all links on until something is done, for as long as the end of this one may take.
  template <typename Done>
  bool move_until(Done is_done) {
    const auto deadline = Clock::now() + kCloseMost;
    while (!is_done()) {
      if (worker_->is_abandoned() || Clock::now() >= deadline) return false;
      worker_->progress();
    }
    return true;
  }

  Result<void> fail(const std::string& reason) {
    failure_ =
        machine_refused("the connection to host {} is lost: {}", stream_->peer(), reason).error();
    return std::unexpected(*failure_);
  }

  const UcxLibrary& ucx_;
  const std::shared_ptr<UcxWorker> worker_;
  const std::unique_ptr<HostStream> stream_;
  const std::chrono::milliseconds patience_;
  const Clock::duration spin_time_;
  Place own_;
  Place other_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_tag_recv_info_t came_ = {};  // of what was received last
  std::array<Request, MessagePieces::kSlots> pieces_sent_;
  Request piece_received_{.receives = true};
  bool awaits_piece_ = false;
  Clock::time_point looked_ = {};  // at the host
  ucs_status_t endpoint_status_ = UCS_OK;
  std::atomic<bool> is_shut_down_ = false;
  std::optional<Error> failure_;
  std::unique_ptr<MessagePieces> pieces_;
};

}  // namespace

std::string ucx_obstacle() {
  const auto& library = ucx_library();
  return library ? std::string() : library.error().message;
}

Result<std::unique_ptr<HostLink>> make_ucx_link(std::unique_ptr<HostStream> stream, size_t,
                                                HostLink* beside) {
  const auto& library = ucx_library();
  if (!library) return std::unexpected(library.error());
  std::shared_ptr<UcxWorker> worker;
  if (beside != nullptr) {
    worker = static_cast<UcxLink*>(beside)->worker();
  } else {
    auto created = UcxWorker::create(*library);
    if (!created) {
      return machine_refused("no link by UCX to host {}: {}", stream->peer(),
                             created.error().message);
    }
    worker = std::move(*created);
  }
  auto link = std::make_unique<UcxLink>(*library, std::move(worker), std::move(stream));
  if (auto opened = link->open(); !opened) return std::unexpected(opened.error());
  return link;
}

}  // namespace lockstep
