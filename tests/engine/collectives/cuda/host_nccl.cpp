#include "tests/engine/collectives/cuda/host_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "tests/engine/kernels/cuda/launch_stream.h"

namespace lockstep {

class HostNcclRanks final : public NcclRanks {
 public:
  HostNcclRanks(size_t rank_count, std::chrono::nanoseconds deadline)
      : deadline_(deadline), posted_(rank_count), spent_(rank_count) {}

  void set_deadline(std::chrono::nanoseconds deadline) override { deadline_.store(deadline); }

  void all_reduce(size_t rank, void* stream, const float* values, float* sums,
                  size_t count) override {
    host_nccl().change([](HostNccl::State& state) { ++state.counts.all_reduces; });
    enqueue(rank, stream, [=, this] {
      std::vector<float> total;
      const Met met = meet_around(rank, {.values = values, .count = count},
                                  [&] { total = sum_of_all(values, count); });
      if (met == Met::kAll) std::ranges::copy(total, sums);
      return met;
    });
  }

  void exchange(size_t rank, void* stream, std::span<const NcclTransfer> transfers) override {
    host_nccl().change([](HostNccl::State& state) { ++state.counts.exchanges; });
    const std::vector<NcclTransfer> own(transfers.begin(), transfers.end());
    enqueue(rank, stream, [=, this] {
      std::vector<std::vector<float>> received;
      const Met met = meet_around(rank, {.transfers = &own}, [&] {
        for (const NcclTransfer& transfer : own) received.push_back(sent_to(rank, transfer));
      });
      for (size_t index = 0; met == Met::kAll && index < own.size(); ++index) {
        std::ranges::copy(received[index], own[index].receive);
      }
      return met;
    });
  }

  std::chrono::nanoseconds time_spent(size_t rank) override {
    const std::lock_guard lock(mutex_);
    return spent_[rank];
  }

  Result<void> check(size_t) override {
    const std::lock_guard lock(mutex_);
    if (failure_) return std::unexpected(*failure_);
    return {};
  }

  void abort(const Error& reason) override {
    host_nccl().change([](HostNccl::State& state) { ++state.counts.aborts; });
    const std::lock_guard lock(mutex_);
    fail(reason);
  }

 private:
  // The arguments that a rank has brought to the call at hand.
  struct Posted {
    const float* values = nullptr;
    size_t count = 0;
    const std::vector<NcclTransfer>* transfers = nullptr;
  };

  enum class Met { kAll, kFailed, kNotYet };

  void enqueue(size_t rank, void* stream, std::function<Met()> work) {
    if (host_nccl().is_silent(rank)) return;
    auto timed = [this, rank, work = std::move(work)] {
      const auto begin = std::chrono::steady_clock::now();
      const bool done = work() != Met::kNotYet;
      const std::lock_guard lock(mutex_);
      spent_[rank] += std::chrono::steady_clock::now() - begin;
      return done;
    };
    if (stream == nullptr) {
      CHECK(timed(), "rank {}: others do not come to its call", rank);
    } else {
      static_cast<LaunchStream*>(stream)->enqueue_waiting(std::move(timed));
    }
  }

  // All ranks post, read what the others have posted, and go on.
  Met meet_around(size_t rank, const Posted& own, const std::function<void()>& read) {
    {
      const std::lock_guard lock(mutex_);
      posted_[rank] = own;
    }
    const Met met = meet(rank, host_nccl().waits_for_ever());
    if (met != Met::kAll) return met;
    read();
    return meet(rank, /*for_ever=*/false);
  }

  Met meet(size_t rank, bool for_ever) {
    std::unique_lock lock(mutex_);
    const size_t round = rounds_;
    if (++arrived_ == posted_.size()) {
      arrived_ = 0;
      ++rounds_;
      all_came_.notify_all();
    }
    const auto is_over = [&] { return rounds_ != round || failure_.has_value(); };
    const auto deadline = host_nccl().deadline_or(deadline_.load());
    if (!all_came_.wait_for(lock, deadline, is_over)) {
      if (for_ever) {
        --arrived_;
        return Met::kNotYet;
      }
      fail(Error{ErrorKind::kMachineRefused,
                 fmt::format("rank {}: the others did not come to its call in time", rank)});
    }
    return failure_ ? Met::kFailed : Met::kAll;
  }

  // Under the lock.
  void fail(const Error& reason) {
    if (!failure_) failure_ = reason;
    all_came_.notify_all();
  }

  std::vector<float> sum_of_all(const float* own, size_t count) const {
    std::vector<float> total(own, own + count);
    const size_t ranks = posted_.size();
    for (const Posted& posted : posted_) {
      CHECK(posted.count == count, "ranks sum {} and {} values", count, posted.count);
    }
    for (size_t index = 0; index < count; ++index) {
      const size_t first = index % ranks;
      float sum = posted_[first].values[index];
      for (size_t step = 1; step < ranks; ++step) {
        sum += posted_[(first + step) % ranks].values[index];
      }
      total[index] = sum;
    }
    return total;
  }

  std::vector<float> sent_to(size_t rank, const NcclTransfer& own) const {
    const auto& theirs = *posted_[own.peer].transfers;
    const auto found = std::ranges::find(theirs, rank, &NcclTransfer::peer);
    CHECK(found != theirs.end(), "rank {} sends nothing to rank {}", own.peer, rank);
    CHECK(found->send_count == own.receive_count, "rank {} sends {} values, rank {} takes {}",
          own.peer, found->send_count, rank, own.receive_count);
    return {found->send, found->send + found->send_count};
  }

  std::atomic<std::chrono::nanoseconds> deadline_;
  std::mutex mutex_;
  std::condition_variable all_came_;
  std::vector<Posted> posted_;                   // by rank; read between two barriers
  std::vector<std::chrono::nanoseconds> spent_;  // GUARDED_BY(mutex_), as what follows; by rank
  size_t arrived_ = 0;
  size_t rounds_ = 0;
  std::optional<Error> failure_;
};

void HostNccl::reset() {
  change([](State& state) { state = {}; });
}

void HostNccl::refuse(bool refused) {
  change([refused](State& state) { state.is_refused = refused; });
}

void HostNccl::silence(size_t rank, std::chrono::nanoseconds deadline) {
  change([=](State& state) {
    state.silent_rank = rank;
    state.deadline = deadline;
  });
}

void HostNccl::wait_for_ever(std::chrono::nanoseconds look) {
  change([=](State& state) {
    state.waits_for_ever = true;
    state.deadline = look;
  });
}

bool HostNccl::waits_for_ever() const {
  const std::lock_guard lock(mutex_);
  return state_.waits_for_ever;
}

HostNccl::Counts HostNccl::counts() const {
  const std::lock_guard lock(mutex_);
  return state_.counts;
}

bool HostNccl::is_silent(size_t rank) const {
  const std::lock_guard lock(mutex_);
  return state_.silent_rank == rank;
}

std::chrono::nanoseconds HostNccl::deadline_or(std::chrono::nanoseconds given) const {
  const std::lock_guard lock(mutex_);
  return state_.deadline.value_or(given);
}

HostNccl& host_nccl() {
  static HostNccl nccl;
  return nccl;
}

Result<std::unique_ptr<NcclRanks>> join_host_gpus(std::span<const int> gpus,
                                                  std::chrono::nanoseconds deadline) {
  const std::lock_guard lock(host_nccl().mutex_);
  if (host_nccl().state_.is_refused) {
    return machine_refused("{} GPUs are not joined by a fake NCCL", gpus.size());
  }
  ++host_nccl().state_.counts.joined;
  return std::make_unique<HostNcclRanks>(gpus.size(), deadline);
}

}  // namespace lockstep
