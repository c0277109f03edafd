#include "tests/engine/runtime/socket_rank.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "engine/collectives/shared_memory.h"

namespace lockstep {
namespace {

// Weights that the other process loads.
class NoWeights final : public WeightSink {
 public:
  bool takes_whole_panels() const override { return false; }
  Result<void> begin(size_t) override { return {}; }
  Result<GpuMemory> pin(std::span<std::byte>) override { return GpuMemory(); }
  Result<void> take(const ReadExtent&) override { return {}; }
  Result<void> finish() override { return {}; }
};

Result<void> send_all(int socket, const void* bytes, size_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  while (count > 0) {
    const ssize_t sent = send(socket, from, count, MSG_NOSIGNAL);
    if (sent <= 0) return machine_refused("the other process does not receive");
    from += sent;
    count -= static_cast<size_t>(sent);
  }
  return {};
}

Result<void> receive_all(int socket, void* bytes, size_t count) {
  auto* to = static_cast<std::byte*>(bytes);
  while (count > 0) {
    const ssize_t received = recv(socket, to, count, 0);
    if (received <= 0) return machine_refused("the other process does not send");
    to += received;
    count -= static_cast<size_t>(received);
  }
  return {};
}

// A run of changed bytes; one of no bytes ends a copy's.
struct Run {
  uint64_t offset = 0;
  uint64_t count = 0;
};

}  // namespace

Result<std::unique_ptr<Rank>> SocketRank::start(size_t rank, const RankPlace& place, bool crowded,
                                                int socket) {
  auto workers = start_workers(place, crowded);
  if (!workers) return std::unexpected(workers.error());
  return std::unique_ptr<Rank>(new SocketRank(rank, place, std::move(*workers), socket));
}

Result<void> SocketRank::take_memory(ArenaSources sources) {
  return allocate_on_host({.exchange = plan().exchange_bytes, .logits = plan().logits_bytes},
                          std::move(sources));
}

// The rank here is the other of the two; the logits are rank 0's.
Result<void> SocketRank::prepare() {
  auto* const exchange = addresses().at(ArenaOffset<std::byte>{Arena::kExchange});
  const size_t exchange_bytes = plan().exchange_bytes;
  areas_.push_back(
      {.mirror = {exchange, exchange_bytes},
       .local = {at_distance(exchange, peers().distances.at(1 - rank_)), exchange_bytes}});
  auto* const logits = addresses().at(ArenaOffset<std::byte>{Arena::kLogits});
  const size_t bytes = plan().logit_rows * plan().logits_stride * sizeof(float);
  areas_.push_back({.mirror = {rank_ == 0 ? logits : nullptr, bytes},
                    .local = {rank_ == 0 ? nullptr : logits, bytes}});
  return {};
}

std::unique_ptr<WeightSink> SocketRank::make_weight_sink() {
  return std::make_unique<NoWeights>();
}

void SocketRank::begin(const PassInput&) {
  workers().begin(job_);
}

Result<void> SocketRank::finish() {
  workers().finish();
  return result_;
}

void SocketRank::walk() {
  Barrier& barrier = workers().barrier();
  for (const Step& step : plan().steps) {
    if (step.meet != Meet::kAllRanks) continue;
    barrier.wait_for_other_ranks();
    exchange_all();
    barrier.arrive(0);
    barrier.wait_for_all_ranks(0);
  }
}

// Rank 0's process sends first: neither waits for space in the other's socket while it is not read.
void SocketRank::exchange_all() {
  const bool sends_first = rank_ == 1;
  for (const bool sends : {sends_first, !sends_first}) {
    for (Area& area : areas_) {
      if (sends) {
        send_changes(area.mirror);
        send_changes(area.local);
      } else {
        receive_changes(area.local);
        receive_changes(area.mirror);
      }
    }
  }
}

void SocketRank::Copy::write(size_t offset, std::span<const std::byte> run) {
  std::ranges::copy(run, bytes + offset);
  std::ranges::copy(run, known.begin() + static_cast<std::ptrdiff_t>(offset));
}

void SocketRank::send_changes(Copy& copy) {
  const auto begin = copy.known.begin();
  for (auto from = begin; from != copy.known.end();) {
    const auto [first, changed] =
        std::mismatch(from, copy.known.end(), copy.bytes + (from - begin));
    const std::byte* same = changed;
    auto end = first;
    while (end != copy.known.end() && *end != *same) *end++ = *same++;
    const Run run{static_cast<uint64_t>(first - begin), static_cast<uint64_t>(end - first)};
    if (run.count > 0) {
      if (result_) result_ = send_all(socket_, &run, sizeof(run));
      if (result_) result_ = send_all(socket_, changed, run.count);
      sent_bytes_ += run.count;
    }
    from = end;
  }
  const Run last;
  if (result_) result_ = send_all(socket_, &last, sizeof(last));
}

void SocketRank::receive_changes(Copy& copy) {
  std::vector<std::byte> bytes;
  while (result_) {
    Run run;
    result_ = receive_all(socket_, &run, sizeof(run));
    if (!result_ || run.count == 0) return;
    bytes.resize(run.count);
    result_ = receive_all(socket_, bytes.data(), run.count);
    if (result_) copy.write(run.offset, bytes);
  }
}

Result<HiddenPart> SocketRank::hidden_part(size_t) {
  return machine_refused("another process has the hidden rows");
}

}  // namespace lockstep
