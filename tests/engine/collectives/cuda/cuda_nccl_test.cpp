// nccl.h on real GPUs: two, or two ranks on one where the version of NCCL that is loaded lets them.
// In builds with CUDA alone; what cannot be run is skipped and says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "engine/collectives/gpu_nccl_sum.h"
#include "engine/machine/gpu.h"
#include "engine/machine/gpu_device.h"
#include "engine/machine/node_memory.h"
#include "engine/tensor/format.h"
#include "tests/engine/collectives/random_partials.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kDeadline{60};
constexpr size_t kRanks = 2;
constexpr size_t kFloats = 3 * 4096;
constexpr size_t kBytes = kFloats * sizeof(float);

// A rank's GPU with a message, what others add to it, and space for what is received.
struct Place {
  std::unique_ptr<GpuDevice> device;
  std::unique_ptr<GpuStream> stream;
  GpuMemory partial;
  GpuMemory output;
  GpuMemory received;
  NodeMemory host;
  GpuMemory pinned;
};

float* floats_of(const GpuMemory& memory) {
  return reinterpret_cast<float*>(memory.data());
}

class CudaNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    const GpuReading reading = read_gpus();
    if (reading.gpus.empty()) GTEST_SKIP() << "no GPU: " << reading.absence;
    if (const std::string absence = nccl_absence(); !absence.empty()) GTEST_SKIP() << absence;
    if (const std::string alone = no_shared_gpus();
        reading.gpus.size() < kRanks && !alone.empty()) {
      GTEST_SKIP() << "no GPU for a second rank: " << alone;
    }
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      gpus_.push_back(reading.gpus[rank % reading.gpus.size()].index);
    }
    auto joined = NcclRanks::create(gpus_, kDeadline);
    ASSERT_TRUE(joined.has_value()) << joined.error().message;
    nccl_ = std::move(*joined);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      places_.push_back(make_place(gpus_[rank]));
      partials_.push_back(random_values(kFloats, static_cast<uint32_t>(rank) + 1));
      outputs_.push_back(random_values(kFloats, 9));
    }
  }

  static Place make_place(int gpu) {
    Place place;
    place.device = open_cuda_device(gpu).value();
    place.stream = place.device->make_stream().value();
    for (GpuMemory* memory : {&place.partial, &place.output, &place.received}) {
      *memory = place.device->allocate(kBytes, "a test").value();
    }
    place.host = NodeMemory::allocate({.bytes = kBytes, .what = "a test"}).value();
    place.pinned = place.device->pin({place.host.data(), place.host.size_bytes()}).value();
    return place;
  }

  static void write(Place& place, const GpuMemory& to, const std::vector<float>& values) {
    std::memcpy(place.host.data(), values.data(), kBytes);
    ASSERT_TRUE(place.stream->copy(to.data(), place.host.data(), kBytes).has_value());
    ASSERT_TRUE(place.stream->wait(kDeadline).has_value());
  }

  static std::vector<float> read(Place& place, const GpuMemory& from) {
    EXPECT_TRUE(place.stream->copy(place.host.data(), from.data(), kBytes).has_value());
    EXPECT_TRUE(place.stream->wait(kDeadline).has_value());
    std::vector<float> values(kFloats);
    std::memcpy(values.data(), place.host.data(), kBytes);
    return values;
  }

  void on_every_rank(const std::function<void(Place& place, const GpuNcclLink& link)>& job) {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        Place& place = places_[rank];
        ASSERT_TRUE(place.device->use().has_value());
        write(place, place.partial, partials_[rank]);
        write(place, place.output, outputs_[rank]);
        job(place, {nccl_.get(), rank, kRanks, floats_of(place.received)});
        EXPECT_TRUE(place.stream->wait(kDeadline).has_value());
        const auto sound = nccl_->check(rank);
        EXPECT_TRUE(sound.has_value()) << sound.error().message;
      });
    }
  }

  std::vector<int> gpus_;
  std::vector<Place> places_;
  std::vector<std::vector<float>> partials_;
  std::vector<std::vector<float>> outputs_;
  std::unique_ptr<NcclRanks> nccl_;  // ends before the memory does
};

// By NCCL's own sum, and with bf16 by an exchange of parts; the second time the ranks are
// connected.
TEST_F(CudaNccl, a_sum_has_the_bits_of_the_sum_in_order_of_rank) {
  const size_t all[] = {0, 1};
  for (const bool bf16 : {false, true}) {
    for (int time = 0; time < 2; ++time) {
      on_every_rank([&](Place& place, const GpuNcclLink& link) {
        nccl_all_reduce(place.stream->handle(),
                        {.partial = floats_of(place.partial),
                         .partial_stride = 4096,
                         .output = floats_of(place.output),
                         .output_stride = 4096,
                         .row_count = 3,
                         .column_count = 4096,
                         .contributors = all,
                         .bf16 = bf16},
                        link, cuda_collectives());
      });
      std::vector<float> expected = outputs_[0];
      for (size_t index = 0; index < kFloats; ++index) {
        const auto travelled = [&](size_t rank) {
          const float value = partials_[rank][index];
          return bf16 ? bf16_to_float(float_to_bf16(value)) : value;
        };
        expected[index] += travelled(0) + travelled(1);
      }
      for (Place& place : places_) EXPECT_EQ(read(place, place.output), expected);
      nccl_->set_deadline(std::chrono::seconds(3));
    }
  }
}

TEST_F(CudaNccl, what_ranks_have_parts_of_is_joined) {
  std::vector<float> whole = random_values(kFloats, 3);
  for (size_t index = 0; index < kFloats; ++index) {
    const size_t owner = index / 7 % kRanks;
    outputs_[owner][index] = whole[index];
    outputs_[1 - owner][index] = -0.0F;
  }
  on_every_rank([](Place& place, const GpuNcclLink& link) {
    nccl_join(place.stream->handle(), floats_of(place.output), kFloats, link, cuda_collectives());
  });
  for (Place& place : places_) EXPECT_EQ(read(place, place.output), whole);
}

// Its kernel waits on the GPU for the other rank's until all is aborted, and ends then.
TEST_F(CudaNccl, a_rank_that_never_comes_keeps_nobody_once_it_is_aborted) {
  Place& place = places_[0];
  ASSERT_TRUE(place.device->use().has_value());
  nccl_->set_deadline(std::chrono::milliseconds(200));
  nccl_->all_reduce(0, place.stream->handle(), floats_of(place.partial), floats_of(place.received),
                    kFloats);
  nccl_->abort(Error{ErrorKind::kMachineRefused, "a test has had enough"});
  EXPECT_TRUE(place.stream->wait(kDeadline).has_value());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const auto failed = nccl_->check(rank);
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().kind, ErrorKind::kMachineRefused);
  }
}

}  // namespace
}  // namespace lockstep
