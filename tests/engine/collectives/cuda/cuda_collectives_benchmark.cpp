// Sums between GPUs by their ways, over message sizes: what gpu_all_reduce_choice.cpp is to be
// measured with. Microseconds per sum, the slowest rank's: between two events round a CUDA graph of
// many sums, whichever way they go; the median of several rounds. By NCCL there are two: the sum as
// ranks use it, which is added to the output, and NCCL's all-reduce by itself.
//   cuda_collectives_benchmark [RANKS]     of GPUs; where there are fewer, several ranks on one
// Ranks on one GPU reach its memory, not a link: they measure what the kernels and their barriers
// take, and nothing of NVLink or PCIe.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/check.h"
#include "engine/collectives/gpu_nccl_sum.h"
#include "engine/machine/gpu.h"
#include "engine/machine/gpu_device.h"
#include "engine/machine/node_memory.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kDeadline{60};
constexpr size_t kLargestBytes = size_t{8} << 20U;
constexpr size_t kSums = 200;  // of a graph
constexpr size_t kRounds = 9;

template <typename T>
T value_of(Result<T> result) {
  CHECK(result.has_value(), "{}", result.error().message);
  return std::move(*result);
}
void expect(const Result<void>& result) {
  CHECK(result.has_value(), "{}", result.error().message);
}
void expect(cudaError_t error) {
  CHECK(error == cudaSuccess, "{}", cudaGetErrorString(error));
}

// The words that a rank's GPU writes into the host's memory.
struct Words {
  uint32_t failure = 0;
  uint64_t spent_ns = 0;
};

struct Place {
  std::unique_ptr<GpuDevice> device;
  std::unique_ptr<GpuStream> stream;
  GpuMemory partial;
  GpuMemory output;
  GpuMemory mailbox;
  GpuMemory received;
  NodeMemory host;
  GpuMemory pinned;
  GpuPeers peers;

  Words* words() const { return reinterpret_cast<Words*>(host.data()); }
};

class Bench {
 public:
  Bench(const std::vector<Gpu>& gpus, size_t rank_count) : meeting_(ptrdiff_t(rank_count)) {
    const bool shared = gpus.size() < rank_count;
    for (size_t rank = 0; rank < rank_count; ++rank) {
      indices_.push_back(gpus[rank % gpus.size()].index);
      open(rank, rank_count, shared ? kGpuChannelsMax / rank_count : kGpuChannelsMax);
    }
    for (Place& place : places_) {
      for (size_t other = 0; other < rank_count; ++other) {
        expect(place.device->reach(indices_[other]));
        place.peers.mailboxes[other] = places_[other].mailbox.data();
      }
      contributors_.push_back(place.peers.rank);
    }
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    auto joined = NcclRanks::create(indices_, kDeadline);
    if (!joined) {
      fmt::print("NCCL is left out: {}\n", joined.error().message);
      return;
    }
    nccl_ = std::move(*joined);
    nccl_->set_deadline(kDeadline);
  }

  bool has_nccl_ranks() const { return nccl_ != nullptr; }

  double peer_microseconds(size_t bytes, bool two_shots) {
    return measure([&](Place& place) {
      GpuAllReduce sum = sum_of(place, bytes);
      sum.two_shots = two_shots;
      gpu_all_reduce(place.stream->handle(), sum, place.peers);
    });
  }

  double nccl_microseconds(size_t bytes) {
    return measure([&](Place& place) {
      const GpuNcclLink link = {nccl_.get(), place.peers.rank, places_.size(),
                                reinterpret_cast<float*>(place.received.data())};
      nccl_all_reduce(place.stream->handle(), sum_of(place, bytes), link, cuda_collectives());
    });
  }

  double plain_nccl_microseconds(size_t bytes) {
    return measure([&](Place& place) {
      const GpuAllReduce sum = sum_of(place, bytes);
      nccl_->all_reduce(place.peers.rank, place.stream->handle(), sum.partial, sum.output,
                        bytes / sizeof(float));
    });
  }

 private:
  void open(size_t rank, size_t rank_count, size_t channels) {
    Place place;
    place.device = value_of(open_cuda_device(indices_[rank]));
    expect(place.device->use());
    place.stream = value_of(place.device->make_stream());
    const size_t received = gpu_nccl_received_floats(rank_count, kLargestBytes / sizeof(float));
    const size_t mailbox_bytes = gpu_mailbox_bytes(rank_count, channels);
    const std::pair<GpuMemory*, size_t> requests[] = {{&place.partial, kLargestBytes},
                                                      {&place.output, kLargestBytes},
                                                      {&place.mailbox, mailbox_bytes},
                                                      {&place.received, received * sizeof(float)}};
    for (const auto& [memory, bytes] : requests) {
      *memory = value_of(place.device->allocate(bytes, "a benchmark"));
      if (bytes > 0) expect(place.stream->clear(memory->data(), bytes));
    }
    expect(place.stream->wait(kDeadline));
    place.host = value_of(NodeMemory::allocate({.bytes = sizeof(Words), .what = "a benchmark"}));
    place.pinned = value_of(place.device->pin({place.host.data(), place.host.size_bytes()}));
    auto* const words = new (place.host.data()) Words;
    place.peers = {.rank = rank, .rank_count = rank_count, .channel_count = channels};
    place.peers.failure = &words->failure;
    place.peers.spent_ns = &words->spent_ns;
    places_.push_back(std::move(place));
  }

  GpuAllReduce sum_of(const Place& place, size_t bytes) const {
    const size_t columns = bytes / sizeof(float);
    return {.partial = reinterpret_cast<const float*>(place.partial.data()),
            .partial_stride = columns,
            .output = reinterpret_cast<float*>(place.output.data()),
            .output_stride = columns,
            .row_count = 1,
            .column_count = columns,
            .contributors = contributors_};
  }

  // A graph of kSums of them on every rank at the same time.
  double measure(const std::function<void(Place& place)>& enqueue) {
    std::vector<double> rounds(kRounds);
    std::vector<std::jthread> threads;
    std::atomic<double> slowest = 0;
    for (Place& place : places_) {
      threads.emplace_back([&] {
        expect(place.device->use());
        const std::unique_ptr<GpuRecording> sums = record(place, enqueue);
        for (size_t round = 0; round <= kRounds; ++round) {  // the first one warms up
          meeting_.arrive_and_wait();
          const double own = play(place, *sums) / kSums;
          double most = slowest;
          while (own > most && !slowest.compare_exchange_weak(most, own)) {
          }
          meeting_.arrive_and_wait();
          if (place.peers.rank == 0 && round > 0) rounds[round - 1] = slowest;
          if (place.peers.rank == 0) slowest = 0;
        }
      });
    }
    threads.clear();
    std::ranges::sort(rounds);
    return rounds[kRounds / 2];
  }

  // After one of them by itself, in which NCCL connects the ranks.
  std::unique_ptr<GpuRecording> record(Place& place,
                                       const std::function<void(Place& place)>& enqueue) {
    enqueue(place);
    expect(place.stream->wait(kDeadline));
    expect(place.stream->begin_recording());
    for (size_t sum = 0; sum < kSums; ++sum) enqueue(place);
    auto recorded = value_of(place.stream->end_recording());
    if (nccl_ != nullptr) expect(nccl_->check(place.peers.rank));
    return recorded;
  }

  // In microseconds.
  static double play(Place& place, const GpuRecording& sums) {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    expect(cudaEventCreate(&begin));
    expect(cudaEventCreate(&end));
    auto* const stream = static_cast<cudaStream_t>(place.stream->handle());
    expect(cudaEventRecord(begin, stream));
    expect(place.stream->play(sums));
    expect(cudaEventRecord(end, stream));
    expect(place.stream->wait(kDeadline));
    CHECK(!missing_rank(place.words()->failure), "a rank did not come");
    float milliseconds = 0;
    expect(cudaEventElapsedTime(&milliseconds, begin, end));
    expect(cudaEventDestroy(begin));
    expect(cudaEventDestroy(end));
    return 1000.0 * double{milliseconds};
  }

  std::vector<int> indices_;
  std::vector<Place> places_;
  std::vector<size_t> contributors_;
  std::unique_ptr<NcclRanks> nccl_;
  std::barrier<> meeting_;
};

int run(size_t rank_count) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // ranks on one GPU wait for one another
  const GpuReading reading = read_gpus();
  if (reading.gpus.empty()) {
    fmt::print("no GPU: {}\n", reading.absence);
    return 0;
  }
  Bench bench(reading.gpus, rank_count);
  fmt::print("{} ranks on {} GPUs, {}; microseconds per sum\n{:>10} {:>10} {:>10} {:>10} {:>10}\n",
             rank_count, std::min(rank_count, reading.gpus.size()), reading.gpus.front().name,
             "bytes", "one shot", "two shots", "by NCCL", "NCCL alone");
  for (size_t bytes = 1024; bytes <= kLargestBytes; bytes *= 2) {
    fmt::print("{:>10} {:>10.1f} {:>10.1f}", bytes, bench.peer_microseconds(bytes, false),
               bench.peer_microseconds(bytes, true));
    if (bench.has_nccl_ranks()) {
      fmt::print(" {:>10.1f} {:>10.1f}\n", bench.nccl_microseconds(bytes),
                 bench.plain_nccl_microseconds(bytes));
    } else {
      fmt::print(" {:>10} {:>10}\n", "-", "-");
    }
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  const size_t ranks = count > 1 ? strtoul(arguments[1], nullptr, 10) : 2;
  if (ranks < 2 || ranks > lockstep::kGpuRanksMax) {
    fmt::print("RANKS is {}; 2 to {} are known\n", count > 1 ? arguments[1] : "",
               lockstep::kGpuRanksMax);
    return 2;
  }
  return lockstep::run(ranks);
}
