#include "engine/collectives/mpi_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "engine/collectives/host_channel.h"
#include "engine/collectives/message_pieces.h"
#include "engine/collectives/mpi_library.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// How often a wait looks whether the other host has gone and whether it was shut down.
constexpr auto kLookInterval = std::chrono::milliseconds(20);
// MPI has nothing to sleep on. A wait that is over its spinning sleeps an eighth of what it has
// lasted: so it is never longer by more.
constexpr auto kLongestSleep = std::chrono::milliseconds(1);
constexpr int kSleepDivisor = 8;
constexpr auto kEndsWithin = std::chrono::milliseconds(500);
constexpr int kTagOfNobody = 0;  // links' begin with 1

// The ends of a link tell one another theirs, over the stream.
struct Place {
  std::array<std::byte, 16> job = {};
  int32_t rank = 0;
  int32_t tag = 0;        // of messages to it
  int32_t piece_tag = 0;  // of pieces to it, which come among them
};

struct Operation {
  MPI_Request request = nullptr;
  bool is_done = true;
};

class MpiLink : public HostLink, private MessagePort {
 public:
  MpiLink(MpiJob& job, std::unique_ptr<HostStream> stream)
      : job_(job),
        mpi_(job.mpi()),
        stream_(std::move(stream)),
        patience_(stream_->patience()),
        spin_time_(stream_->spins() ? Clock::duration(kSpinTime) : Clock::duration::zero()),
        pieces_(std::make_unique<MessagePieces>(static_cast<MessagePort&>(*this), *stream_)) {}

  ~MpiLink() override {
    const bool ended = end_all({&piece_received_, pieces_sent_.data(), pieces_sent_.data() + 1});
    if (!ended) std::ignore = pieces_.release();  // what is still in progress keeps its memory
  }
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  // Both hosts tell their places.
  Result<void> open() {
    const Place own = {.job = job_.nonce(),
                       .rank = job_.rank(),
                       .tag = job_.take_tag(),
                       .piece_tag = job_.take_tag()};
    if (own.tag < 0 || own.piece_tag < 0) {
      return machine_refused("this process has had too many links by MPI");
    }
    tag_ = own.tag;
    piece_tag_ = own.piece_tag;
    auto told = stream_->exchange(std::as_bytes(std::span(&own, 1)),
                                  std::as_writable_bytes(std::span(&other_, 1)));
    if (!told) return told;
    if (own.job != other_.job) {
      return machine_refused(
          "no link by MPI to host {}: it was not started by the same mpirun or srun as this one",
          stream_->peer());
    }
    int size = 0;
    mpi_.comm_size(mpi_.world, &size);
    if (other_.rank < 0 || other_.rank >= size || other_.tag < 1 || other_.piece_tag < 1) {
      return machine_refused("no link by MPI to host {}: it says that it is {} of {}",
                             stream_->peer(), other_.rank, size);
    }
    return {};
  }

  Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) override {
    if (failure_) return std::unexpected(*failure_);
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    Operation received;
    Operation sent;
    Result<void> done;
    if (!out.empty()) done = send(sent, out, other_.tag);
    if (done) done = wait_for(sent, received, in);
    // Nothing may write into the caller's memory any more.
    if (!done) end_all({&sent, &received});
    return done;
  }

  void shut_down() noexcept override {
    is_shut_down_.store(true, std::memory_order_relaxed);
    stream_->shut_down();
  }

  bool buffers(size_t /*bytes*/) const override { return false; }  // it may wait for the receiver
  BytePieces& pieces() override { return *pieces_; }
  std::string_view transport() const override { return "mpi"; }

 private:
  Result<void> start(Operation& operation, int status) {
    operation.is_done = status != MPI_SUCCESS;
    return check(status);
  }

  Result<void> check(int status) {
    if (status == MPI_SUCCESS) return {};
    char words[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    mpi_.error_text(status, words, &length);
    return fail(words);
  }

  Result<void> send(Operation& operation, std::span<const std::byte> bytes, int tag) {
    return start(operation, mpi_.send(bytes.data(), static_cast<int>(bytes.size()), mpi_.byte,
                                      other_.rank, tag, mpi_.world, &operation.request));
  }

  // A message that is there, and how long it is.
  struct Found {
    MPI_Message message = nullptr;
    int count = 0;
  };

  // Open MPI 4.1 writes beyond the end of memory that is too small for a message: so a message is
  // received once it is there and is known to be no longer.
  Result<std::optional<Found>> look_for(int tag, size_t bytes_most) {
    int is_there = 0;
    Found found;
    MPI_Status status = {};
    const int probed = mpi_.probe(other_.rank, tag, mpi_.world, &is_there, &found.message, &status);
    if (auto checked = check(probed); !checked) return std::unexpected(checked.error());
    if (is_there == 0) return std::nullopt;
    mpi_.get_count(&status, mpi_.byte, &found.count);  // negative: more than the type holds
    if (found.count < 0 || std::cmp_greater(found.count, bytes_most)) {
      job_.leave_unfinished();
      return fail("more bytes came than the exchange has: the hosts' plans differ");
    }
    return found;
  }

  Result<void> begin_to_receive(Found& found, std::span<std::byte> into, Operation& received) {
    return start(received, mpi_.receive(into.data(), found.count, mpi_.byte, &found.message,
                                        &received.request));
  }

  // Begins to receive an exchange's message once it is there. Both hosts know how long it is: in a
  // shorter one their plans differ.
  Result<void> receive_exchange(std::span<std::byte>& in, Operation& received) {
    auto found = look_for(tag_, in.size());
    if (!found) return std::unexpected(found.error());
    if (!*found) return {};
    if (std::cmp_less((*found)->count, in.size())) {
      job_.leave_unfinished();
      return fail(fmt::format("{} bytes came in an exchange of {}: the hosts' plans differ",
                              (*found)->count, in.size()));
    }
    return begin_to_receive(**found, std::exchange(in, {}), received);
  }

  Result<void> begin_send(size_t slot, std::span<const std::byte> bytes) override {
    if (auto there = look_sometimes(); !there) return there;
    return send(pieces_sent_[slot], bytes, other_.piece_tag);
  }

  Result<bool> has_sent(size_t slot) override {
    if (auto there = look_sometimes(); !there) return std::unexpected(there.error());
    if (auto looked = look_at(pieces_sent_[slot]); !looked) return std::unexpected(looked.error());
    return pieces_sent_[slot].is_done;
  }

  Result<std::optional<size_t>> receive(std::span<std::byte> into) override {
    if (auto there = look_sometimes(); !there) return std::unexpected(there.error());
    if (!piece_) {
      auto found = look_for(piece_tag_, into.size());
      if (!found) return std::unexpected(found.error());
      if (!*found) return std::nullopt;
      piece_ = static_cast<size_t>((*found)->count);
      if (auto begun = begin_to_receive(**found, into, piece_received_); !begun) {
        return std::unexpected(begun.error());
      }
    }
    if (auto looked = look_at(piece_received_); !looked) return std::unexpected(looked.error());
    if (!piece_received_.is_done) return std::nullopt;
    return std::exchange(piece_, {});
  }

  // MPI moves all links on where it looks for any message.
  Result<void> progress() override {
    if (auto there = look_sometimes(); !there) return there;
    int is_there = 0;
    MPI_Message ignored = nullptr;
    MPI_Status status = {};
    return check(mpi_.probe(other_.rank, kTagOfNobody, mpi_.world, &is_there, &ignored, &status));
  }

  // Whether the host is there, now and then.
  Result<void> look_sometimes() {
    if (failure_) return std::unexpected(*failure_);
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    const auto now = Clock::now();
    if (now - looked_ < kLookInterval) return {};
    looked_ = now;
    return look_at_host();
  }

  Result<void> look_at(Operation& operation) {
    if (operation.is_done) return {};
    int is_done = 0;
    MPI_Status ignored = {};
    const int status = mpi_.test(&operation.request, &is_done, &ignored);
    operation.is_done = is_done != 0 || status != MPI_SUCCESS;
    return check(status);
  }

  Result<void> wait_for(Operation& sent, Operation& received, std::span<std::byte> in) {
    const auto began = Clock::now();
    looked_ = began;
    while (true) {
      if (!in.empty()) {
        if (auto begun = receive_exchange(in, received); !begun) return begun;
      }
      if (auto done = look_at(received); !done) return done;
      if (auto done = look_at(sent); !done) return done;
      if (in.empty() && sent.is_done && received.is_done) return {};
      const auto now = Clock::now();
      const auto waited = now - began;
      // MPI does not tell how much of a message has come.
      if (waited >= patience_) {
        return fail(fmt::format("an exchange has not ended in {} ms", patience_.count()));
      }
      if (waited < spin_time_) {
        spin_once(waited);
        continue;
      }
      if (now - looked_ >= kLookInterval) {
        looked_ = now;
        if (auto there = look_at_host(); !there) return there;
      }
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / kSleepDivisor, kLongestSleep));
    }
  }

  // Nothing comes over the stream any more but a pass's last word, and its end behind that.
  Result<void> look_at_host() {
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    const auto there = stream_->wait_readable(std::chrono::milliseconds(0));
    if (!there) return fail(there.error().message);
    return {};
  }

  // Whether these have ended. Neither a message that has begun to come can be cancelled nor one
  // that is sent.
  bool end_all(std::initializer_list<Operation*> operations) {
    const auto are_done = [&] {
      return std::ranges::all_of(operations, [](const Operation* each) { return each->is_done; });
    };
    const auto deadline = Clock::now() + kEndsWithin;
    while (!are_done() && Clock::now() < deadline) {
      // Why it is given up is known already.
      for (Operation* const each : operations) std::ignore = look_at(*each);
      if (!are_done()) std::this_thread::sleep_for(kLongestSleep);
    }
    if (!are_done()) job_.leave_unfinished();
    return are_done();
  }

  // The first reason stays.
  std::unexpected<Error> fail(const std::string& reason) {
    if (!failure_) {
      failure_ =
          machine_refused("the connection to host {} is lost: {}", stream_->peer(), reason).error();
    }
    return std::unexpected(*failure_);
  }

  MpiJob& job_;
  const MpiLibrary& mpi_;
  const std::unique_ptr<HostStream> stream_;
  const std::chrono::milliseconds patience_;
  const Clock::duration spin_time_;
  Place other_;
  int tag_ = 0;        // of messages to this end
  int piece_tag_ = 0;  // of pieces to this end
  std::array<Operation, MessagePieces::kSlots> pieces_sent_;
  Operation piece_received_;
  std::optional<size_t> piece_;    // the bytes of what is being received
  Clock::time_point looked_ = {};  // at the host
  std::atomic<bool> is_shut_down_ = false;
  std::optional<Error> failure_;
  std::unique_ptr<MessagePieces> pieces_;
};

}  // namespace

std::string mpi_obstacle() {
  const auto& library = mpi_library();
  return library ? std::string() : library.error().message;
}

Result<std::unique_ptr<HostLink>> make_mpi_link(std::unique_ptr<HostStream> stream,
                                                size_t bytes_most, HostLink* /*beside*/) {
  if (bytes_most > INT_MAX) {
    return machine_refused("an exchange may have {} bytes, and MPI's have at most {}", bytes_most,
                           INT_MAX);
  }
  const auto& job = MpiJob::join();
  if (!job) return std::unexpected(job.error());
  auto link = std::make_unique<MpiLink>(**job, std::move(stream));
  if (auto opened = link->open(); !opened) return std::unexpected(opened.error());
  return link;
}

}  // namespace lockstep
