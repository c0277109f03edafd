#include "tests/engine/collectives/cuda/host_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/secret.h"
#include "tests/engine/kernels/cuda/launch_stream.h"

namespace lockstep {

// The ranks of all processes that have an id; each process is an object in this one.
struct HostNcclJoin {
  // The arguments that a rank has brought to the call at hand.
  struct Posted {
    const float* values = nullptr;
    size_t count = 0;
    const std::vector<NcclTransfer>* transfers = nullptr;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Posted> posted;  // by rank; GUARDED_BY(mutex), as what follows
  size_t joined = 0;           // ranks
  size_t arrived = 0;
  size_t rounds = 0;
  bool is_broken = false;  // a rank was aborted: no round ends any more
};

// NCCL tells a process nothing of one that has aborted: its ranks wait.
class HostNcclRanks final : public NcclRanks {
 public:
  HostNcclRanks(std::shared_ptr<HostNcclJoin> shared, std::chrono::nanoseconds deadline)
      : shared_(std::move(shared)),
        deadline_(deadline),
        posted_(shared_->posted),
        spent_(posted_.size()) {}
  // Ends as NCCL's communicators do.
  ~HostNcclRanks() override {
    const std::lock_guard lock(shared_->mutex);
    shared_->is_broken = true;
  }
  HostNcclRanks(const HostNcclRanks&) = delete;
  HostNcclRanks& operator=(const HostNcclRanks&) = delete;

  // Until the ranks of all processes have come.
  Result<void> join(size_t own_count, const NcclPlace& place) {
    const auto end = std::chrono::steady_clock::now() + deadline_.load();
    std::unique_lock lock(shared_->mutex);
    shared_->joined += own_count;
    shared_->changed.notify_all();
    while (shared_->joined < posted_.size()) {
      shared_->changed.wait_for(lock, kBetweenLooks);
      lock.unlock();
      if (const auto failure = place.failure ? place.failure() : std::nullopt) {
        return std::unexpected(*failure);
      }
      lock.lock();
      if (std::chrono::steady_clock::now() < end) continue;
      return machine_refused("{} of {} ranks have come in time", shared_->joined, posted_.size());
    }
    return {};
  }

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
        std::map<size_t, size_t> earlier;
        for (const NcclTransfer& transfer : own) {
          received.push_back(sent_to(rank, transfer, earlier[transfer.peer]++));
        }
      });
      for (size_t index = 0; met == Met::kAll && index < received.size(); ++index) {
        std::ranges::copy(received[index], own[index].receive);
      }
      return met;
    });
  }

  std::chrono::nanoseconds time_spent(size_t rank) override {
    const std::lock_guard lock(shared_->mutex);
    return spent_[rank];
  }

  Result<void> check(size_t) override {
    const std::lock_guard lock(shared_->mutex);
    if (failure_) return std::unexpected(*failure_);
    return {};
  }

  void abort(const Error& reason) override {
    host_nccl().change([](HostNccl::State& state) { ++state.counts.aborts; });
    const std::lock_guard lock(shared_->mutex);
    fail(reason);
  }

 private:
  using Posted = HostNcclJoin::Posted;

  static constexpr std::chrono::milliseconds kBetweenLooks{5};

  enum class Met { kAll, kFailed, kNotYet };

  void enqueue(size_t rank, void* stream, std::function<Met()> work) {
    if (host_nccl().is_silent(rank)) return;
    auto timed = [this, rank, work = std::move(work)] {
      const auto begin = std::chrono::steady_clock::now();
      const bool done = work() != Met::kNotYet;
      const std::lock_guard lock(shared_->mutex);
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
      const std::lock_guard lock(shared_->mutex);
      posted_[rank] = own;
    }
    const Met met = meet(rank, host_nccl().waits_for_ever());
    if (met != Met::kAll) return met;
    {
      // The memory of ranks that have been aborted may be gone.
      const std::lock_guard lock(shared_->mutex);
      if (!shared_->is_broken) read();
    }
    return meet(rank, /*for_ever=*/false);
  }

  Met meet(size_t rank, bool for_ever) {
    std::unique_lock lock(shared_->mutex);
    const size_t round = shared_->rounds;
    if (++shared_->arrived == posted_.size() && !shared_->is_broken) {
      shared_->arrived = 0;
      ++shared_->rounds;
      shared_->changed.notify_all();
    }
    const auto is_over = [&] { return shared_->rounds != round || failure_.has_value(); };
    const auto deadline = host_nccl().deadline_or(deadline_.load());
    if (!shared_->changed.wait_for(lock, deadline, is_over)) {
      if (for_ever) {
        --shared_->arrived;
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
    shared_->is_broken = true;
    shared_->changed.notify_all();
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

  // `earlier`: transfers of the call with the same peer that come before this one.
  std::vector<float> sent_to(size_t rank, const NcclTransfer& own, size_t earlier) const {
    const auto& theirs = *posted_[own.peer].transfers;
    auto found = std::ranges::find(theirs, rank, &NcclTransfer::peer);
    for (; earlier > 0 && found != theirs.end(); --earlier) {
      found = std::ranges::find(found + 1, theirs.end(), rank, &NcclTransfer::peer);
    }
    CHECK(found != theirs.end(), "rank {} sends nothing to rank {}", own.peer, rank);
    CHECK(found->send_count == own.receive_count, "rank {} sends {} values, rank {} takes {}",
          own.peer, found->send_count, rank, own.receive_count);
    return {found->send, found->send + found->send_count};
  }

  const std::shared_ptr<HostNcclJoin> shared_;
  std::atomic<std::chrono::nanoseconds> deadline_;
  std::vector<Posted>& posted_;  // the shared's; read between two barriers
  // GUARDED_BY(shared_->mutex), both; by rank
  std::vector<std::chrono::nanoseconds> spent_;
  std::optional<Error> failure_;
};

void HostNccl::reset() {
  change([](State& state) { state = {}; });
}

void HostNccl::refuse(bool refused) {
  change([refused](State& state) { state.is_refused = refused; });
}

void HostNccl::refuse_rank(std::optional<size_t> first) {
  change([first](State& state) { state.refused_rank = first; });
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
  auto shared = std::make_shared<HostNcclJoin>();
  shared->posted.resize(gpus.size());
  return std::make_unique<HostNcclRanks>(std::move(shared), deadline);
}

Result<NcclId> make_host_nccl_id() {
  NcclId id;
  fill_random(id);
  return id;
}

Result<std::unique_ptr<NcclRanks>> join_host_gpus_among(std::span<const int> gpus,
                                                        const NcclPlace& place,
                                                        std::chrono::nanoseconds deadline) {
  std::shared_ptr<HostNcclJoin> shared;
  {
    const std::lock_guard lock(host_nccl().mutex_);
    HostNccl::State& state = host_nccl().state_;
    if (state.is_refused || state.refused_rank == place.first) {
      return machine_refused("{} GPUs are not joined by a fake NCCL", gpus.size());
    }
    ++state.counts.joined;
    auto& found = state.joins[place.id];
    if (found == nullptr) {
      found = std::make_shared<HostNcclJoin>();
      found->posted.resize(place.count);
    }
    shared = found;
  }
  CHECK(shared->posted.size() == place.count, "processes join {} and {} ranks",
        shared->posted.size(), place.count);
  auto ranks = std::make_unique<HostNcclRanks>(std::move(shared), deadline);
  if (auto joined = ranks->join(gpus.size(), place); !joined) {
    return std::unexpected(joined.error());
  }
  return ranks;
}

}  // namespace lockstep
