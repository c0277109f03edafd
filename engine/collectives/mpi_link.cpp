#include "engine/collectives/mpi_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "engine/collectives/host_channel.h"
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

// The ends of a link tell one another theirs, over the stream.
struct Place {
  std::array<std::byte, 16> job = {};
  int32_t rank = 0;
  int32_t tag = 0;  // of messages to it
};

struct Operation {
  MPI_Request request = nullptr;
  bool is_done = true;
};

class MpiLink : public HostLink {
 public:
  MpiLink(MpiJob& job, std::unique_ptr<HostStream> stream)
      : job_(job),
        mpi_(job.mpi()),
        stream_(std::move(stream)),
        patience_(stream_->patience()),
        spin_time_(stream_->spins() ? Clock::duration(kSpinTime) : Clock::duration::zero()) {}

  // Both hosts tell their places.
  Result<void> open() {
    const Place own = {.job = job_.nonce(), .rank = job_.rank(), .tag = job_.take_tag()};
    if (own.tag < 0) return machine_refused("this process has had too many links by MPI");
    tag_ = own.tag;
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
    if (other_.rank < 0 || other_.rank >= size || other_.tag < 1) {
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
    if (!out.empty()) {
      done = start(sent, mpi_.send(out.data(), static_cast<int>(out.size()), mpi_.byte, other_.rank,
                                   other_.tag, mpi_.world, &sent.request));
    }
    if (done) done = wait_for(sent, received, in);
    if (!done) give_up(sent, received);
    return done;
  }

  void shut_down() noexcept override {
    is_shut_down_.store(true, std::memory_order_relaxed);
    stream_->shut_down();
  }

  bool buffers(size_t /*bytes*/) const override { return false; }  // it may wait for the receiver
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

  // Begins to receive once the other host's message is there and is known to be as long as it
  // should be: Open MPI 4.1 writes beyond the end of memory that is too small for one. Both hosts
  // know how much it is, so one of them does not know what it does.
  Result<void> look_for(std::span<std::byte>& in, Operation& received) {
    int is_there = 0;
    MPI_Message message = nullptr;
    MPI_Status status = {};
    const int probed = mpi_.probe(other_.rank, tag_, mpi_.world, &is_there, &message, &status);
    if (probed != MPI_SUCCESS || is_there == 0) return check(probed);
    int count = 0;
    mpi_.get_count(&status, mpi_.byte, &count);  // negative: more than the type holds
    if (count < 0 || std::cmp_greater(count, in.size())) {
      job_.leave_unfinished();
      return fail("more bytes came than the exchange has: the hosts' plans differ");
    }
    if (std::cmp_less(count, in.size())) {
      job_.leave_unfinished();
      return fail(fmt::format("{} bytes came in an exchange of {}: the hosts' plans differ", count,
                              in.size()));
    }
    const auto into = std::exchange(in, {});
    return start(received,
                 mpi_.receive(into.data(), count, mpi_.byte, &message, &received.request));
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
    auto looked = began;
    while (true) {
      if (!in.empty()) {
        if (auto found = look_for(in, received); !found) return found;
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
      if (now - looked >= kLookInterval) {
        looked = now;
        if (auto there = look_at_host(); !there) return there;
      }
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / kSleepDivisor, kLongestSleep));
    }
  }

  // Nothing comes over the stream any more, but its end.
  Result<void> look_at_host() {
    if (is_shut_down_.load(std::memory_order_relaxed)) return fail("it was shut down here");
    const auto there = stream_->wait_readable(std::chrono::milliseconds(0));
    if (!there) return fail(there.error().message);
    return {};
  }

  // Nothing may write into the caller's memory any more, and neither a message that has begun to
  // come can be cancelled nor one that is sent.
  void give_up(Operation& sent, Operation& received) {
    const auto deadline = Clock::now() + kEndsWithin;
    while (!(sent.is_done && received.is_done) && Clock::now() < deadline) {
      // Why it is given up is known already.
      for (Operation* const each : {&sent, &received}) std::ignore = look_at(*each);
      std::this_thread::sleep_for(kLongestSleep);
    }
    if (!(sent.is_done && received.is_done)) job_.leave_unfinished();
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
  int tag_ = 0;  // of messages to this end
  std::atomic<bool> is_shut_down_ = false;
  std::optional<Error> failure_;
};

}  // namespace

std::string mpi_obstacle() {
  const auto& library = mpi_library();
  return library ? std::string() : library.error().message;
}

Result<std::unique_ptr<HostLink>> make_mpi_link(std::unique_ptr<HostStream> stream,
                                                size_t bytes_most) {
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
