// gpu_device.h on a real GPU, by CUDA. In builds with CUDA alone; where there is no GPU, its tests
// are skipped and say so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "engine/machine/gpu_device.h"
#include "engine/machine/node_memory.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kDeadline{10};

class CudaGpu : public testing::Test {
 protected:
  void SetUp() override {
    auto device = open_cuda_device(0);
    if (!device) GTEST_SKIP() << "no GPU: " << device.error().message;
    device_ = std::move(*device);
    ASSERT_TRUE(device_->use().has_value());
    host_ = NodeMemory::allocate({.bytes = kBytes, .what = "a test"}).value();
    pinned_ = device_->pin({host_.data(), host_.size_bytes()}).value();
  }

  std::unique_ptr<GpuStream> make_stream() { return device_->make_stream().value(); }
  GpuMemory allocate(size_t bytes) { return device_->allocate(bytes, "a test").value(); }

  static constexpr size_t kBytes = size_t{4} << 20U;
  std::unique_ptr<GpuDevice> device_;
  NodeMemory host_;
  GpuMemory pinned_;
};

TEST_F(CudaGpu, copies_there_and_back) {
  const GpuMemory memory = allocate(kBytes / 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 256, 0U);
  for (size_t byte = 0; byte < kBytes / 2; ++byte) {
    host_.data()[byte] = static_cast<std::byte>(byte * 7 + byte / 255);
  }
  std::byte* const back = host_.data() + kBytes / 2;
  const auto stream = make_stream();
  ASSERT_TRUE(stream->copy(memory.data(), host_.data(), kBytes / 2).has_value());
  ASSERT_TRUE(stream->clear(memory.data() + 100, 1).has_value());
  ASSERT_TRUE(stream->copy(back, memory.data(), kBytes / 2).has_value());
  ASSERT_TRUE(stream->wait(kDeadline).has_value());
  host_.data()[100] = std::byte{0};
  EXPECT_EQ(0, std::memcmp(host_.data(), back, kBytes / 2));
}

TEST_F(CudaGpu, plays_a_recording_on_what_memory_holds_then) {
  const GpuMemory memory = allocate(1024);
  const auto stream = make_stream();
  ASSERT_TRUE(stream->begin_recording().has_value());
  ASSERT_TRUE(stream->copy(memory.data(), host_.data(), 1024).has_value());
  ASSERT_TRUE(stream->clear(memory.data(), 1).has_value());
  ASSERT_TRUE(stream->copy(host_.data() + 1024, memory.data(), 1024).has_value());
  const auto recording = stream->end_recording();
  ASSERT_TRUE(recording.has_value()) << recording.error().message;
  ASSERT_TRUE(stream->wait(kDeadline).has_value());
  EXPECT_EQ(host_.data()[1024 + 1], std::byte{0}) << "it ran while it was recorded";
  for (const std::byte value : {std::byte{5}, std::byte{6}}) {
    std::memset(host_.data(), static_cast<int>(value), 1024);
    ASSERT_TRUE(stream->play(**recording).has_value());
    ASSERT_TRUE(stream->wait(kDeadline).has_value());
    EXPECT_EQ(host_.data()[1024], std::byte{0});
    EXPECT_EQ(host_.data()[2047], value);
  }
}

// Copy after copy by two streams in turns: each waits for the other's last one.
TEST_F(CudaGpu, lets_streams_wait_for_one_anothers_events) {
  constexpr size_t kParts = 64;
  constexpr size_t kPart = kBytes / kParts;
  const GpuMemory memory = allocate(kPart);
  const std::unique_ptr<GpuStream> streams[] = {make_stream(), make_stream()};
  const std::unique_ptr<GpuEvent> events[] = {device_->make_event().value(),
                                              device_->make_event().value()};
  EXPECT_TRUE(events[0]->has_come().value()) << "it was never recorded";
  std::memset(host_.data(), 0, kBytes);
  std::memset(host_.data(), 9, kPart);
  for (size_t part = 1; part < kParts; ++part) {
    for (const bool back : {false, true}) {
      GpuStream& stream = *streams[back ? 1 : 0];
      ASSERT_TRUE(stream.wait_for(*events[back ? 0 : 1]).has_value());
      std::byte* const at = host_.data() + (back ? part : part - 1) * kPart;
      ASSERT_TRUE(
          (back ? stream.copy(at, memory.data(), kPart) : stream.copy(memory.data(), at, kPart))
              .has_value());
      ASSERT_TRUE(stream.record(*events[back ? 1 : 0]).has_value());
    }
  }
  ASSERT_TRUE(streams[1]->wait(kDeadline).has_value());
  EXPECT_TRUE(events[1]->has_come().value());
  for (size_t byte = 0; byte < kBytes; ++byte) ASSERT_EQ(host_.data()[byte], std::byte{9}) << byte;
}

TEST_F(CudaGpu, says_how_much_memory_it_lacks_and_goes_on) {
  const auto memory = device_->allocate(size_t{1} << 50U, "the KV cache");
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(memory.error().message, HasSubstr("gpu0: no 1073741824 MiB of memory for the KV"));
  EXPECT_EQ(allocate(4096).size_bytes(), 4096U);
  EXPECT_EQ(device_->allocate(0, "nothing").value().size_bytes(), 0U);
}

TEST_F(CudaGpu, gives_back_what_it_gave) {
  for (int round = 0; round < 3; ++round) {
    pinned_ = GpuMemory();
    pinned_ = device_->pin({host_.data(), host_.size_bytes()}).value();
    EXPECT_EQ(pinned_.data(), host_.data());
    EXPECT_FALSE(device_->pin({host_.data(), host_.size_bytes()}).has_value()) << "twice";
  }
}

TEST_F(CudaGpu, serves_several_threads) {
  std::vector<std::jthread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      ASSERT_TRUE(device_->use().has_value());
      const GpuMemory memory = allocate(4096);
      const auto stream = make_stream();
      std::byte* const bytes = host_.data() + thread * 8192;
      for (int round = 0; round < 100; ++round) {
        std::memset(bytes, round, 4096);
        ASSERT_TRUE(stream->copy(memory.data(), bytes, 4096).has_value());
        ASSERT_TRUE(stream->copy(bytes + 4096, memory.data(), 4096).has_value());
        ASSERT_TRUE(stream->wait(kDeadline).has_value());
        ASSERT_EQ(0, std::memcmp(bytes, bytes + 4096, 4096));
      }
    });
  }
}

TEST(CudaGpus, that_are_not_there_are_refused_by_name) {
  const auto device = open_cuda_device(1000);
  ASSERT_FALSE(device.has_value());
  EXPECT_EQ(device.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(device.error().message, HasSubstr("gpu1000 cannot be used"));
}

}  // namespace
}  // namespace lockstep
