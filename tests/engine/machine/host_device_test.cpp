// The simulated GPU does what gpu_device.h promises, and shows what a real one would hide.
#include "tests/engine/machine/host_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "engine/machine/node_memory.h"
#include "tests/engine/kernels/cuda/gpu_code.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kDeadline{10};
constexpr size_t kCount = 64;

GPU_KERNEL void add_to_all(float* values, float more) {
  follow_launches();
  values[thread_index()] += more;
}

// Reads the value before and after the launches before are done.
GPU_KERNEL void look_twice(const float* value, float* seen) {
  if (thread_index() == 0) seen[0] = *value;
  follow_launches();
  if (thread_index() == 0) seen[1] = *value;
}

class MadeUpGpu : public testing::Test {
 protected:
  MadeUpGpu() { EXPECT_TRUE(device_.use().has_value()); }

  GpuMemory allocate(size_t bytes) { return device_.allocate(bytes, "a test").value(); }
  std::unique_ptr<GpuStream> make_stream() { return device_.make_stream().value(); }
  static void add(GpuStream& stream, float* values, float more) {
    launch(stream.handle(), {.threads = kCount}, add_to_all, values, more);
  }
  static std::span<const float> floats(const GpuMemory& memory) {
    return {reinterpret_cast<const float*>(memory.data()), memory.size_bytes() / sizeof(float)};
  }
  static float* begin(const GpuMemory& memory) { return reinterpret_cast<float*>(memory.data()); }

  HostGpu gpu_{3, 4096};
  HostDevice device_{gpu_};
};

TEST_F(MadeUpGpu, gives_aligned_memory_that_holds_no_number) {
  const GpuMemory first = allocate(4);
  const GpuMemory second = allocate(1000);
  for (const GpuMemory* memory : {&first, &second}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 256, 0U);
    for (const float value : floats(*memory)) EXPECT_TRUE(std::isnan(value));
  }
  EXPECT_EQ(gpu_.counts().allocated_bytes, 1004U);
  EXPECT_EQ(device_.allocate(0, "nothing").value().size_bytes(), 0U);
  EXPECT_EQ(gpu_.counts().allocations, 2U);
}

TEST_F(MadeUpGpu, has_as_much_memory_as_a_test_says) {
  GpuMemory memory = allocate(4000);
  const auto more = device_.allocate(97, "the KV cache");
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(more.error().message, HasSubstr("gpu3: 97 bytes of memory for the KV cache: 96 of"));
  memory = GpuMemory();
  EXPECT_EQ(gpu_.counts().allocated_bytes, 0U);
  memory = allocate(4096);
  gpu_.set_memory(4095);
  EXPECT_FALSE(device_.allocate(1, "a test").has_value());
}

TEST_F(MadeUpGpu, copies_between_its_memory_and_pinned_memory_alone) {
  const NodeMemory host = NodeMemory::allocate({.bytes = 4096, .what = "a test"}).value();
  GpuMemory pinned = device_.pin({host.data(), host.size_bytes()}).value();
  EXPECT_EQ(pinned.data(), host.data());
  EXPECT_EQ(gpu_.counts().pinned_bytes, host.size_bytes());
  EXPECT_FALSE(device_.pin({host.data(), host.size_bytes()}).has_value()) << "twice";
  const GpuMemory memory = allocate(256);
  const auto stream = make_stream();
  host.data()[255] = std::byte{7};
  ASSERT_TRUE(stream->copy(memory.data(), host.data(), 256).has_value());
  ASSERT_TRUE(stream->wait(kDeadline).has_value());
  EXPECT_EQ(memory.data()[255], std::byte{7});
  std::vector<std::byte> pageable(256);
  EXPECT_DEATH((void)stream->copy(memory.data(), pageable.data(), 256), "are not pinned");
  EXPECT_DEATH((void)stream->copy(memory.data(), host.data(), 257), "lie in no GPU's memory");
  EXPECT_DEATH((void)stream->clear(memory.data() + 1, 256), "lie in no GPU's memory");
  pinned = GpuMemory();
  EXPECT_EQ(gpu_.counts().pinned_bytes, 0U);
  EXPECT_DEATH((void)stream->copy(memory.data(), host.data(), 256), "are not pinned");
  gpu_.set_pinnable(host.size_bytes() - 1);
  const auto refused = device_.pin({host.data(), host.size_bytes()});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("cannot be pinned"));
}

TEST_F(MadeUpGpu, runs_copies_and_kernels_in_their_order) {
  for (const bool late : {false, true}) {
    gpu_.run_late(late);
    const GpuMemory memory = allocate(kCount * sizeof(float));
    const GpuMemory other = allocate(kCount * sizeof(float));
    const auto stream = make_stream();
    ASSERT_TRUE(stream->clear(memory.data(), memory.size_bytes()).has_value());
    add(*stream, begin(memory), 2);
    ASSERT_TRUE(stream->copy(other.data(), memory.data(), memory.size_bytes()).has_value());
    add(*stream, begin(memory), 3);
    EXPECT_EQ(std::isnan(floats(memory)[0]), late);
    ASSERT_TRUE(stream->wait(kDeadline).has_value());
    EXPECT_THAT(floats(memory), testing::Each(5));
    EXPECT_THAT(floats(other), testing::Each(2));
  }
  EXPECT_EQ(gpu_.counts().launches, 4U);
  EXPECT_EQ(gpu_.counts().copies, 2U);
}

// Though its stream would run at once, and the other's as late as may be.
TEST_F(MadeUpGpu, lets_another_gpus_stream_wait_for_an_event) {
  HostGpu other_gpu(4, 4096);
  HostDevice other(other_gpu);
  const GpuMemory memory = allocate(kCount * sizeof(float));
  const GpuMemory taken = other.allocate(memory.size_bytes(), "a test").value();
  const auto gives = make_stream();
  const auto takes = other.make_stream().value();
  const auto event = device_.make_event().value();
  EXPECT_TRUE(event->has_come().value());
  gpu_.run_late(true);
  for (float round = 1; round < 4; ++round) {
    add(*gives, begin(memory), 1);
    if (round == 1) {
      ASSERT_TRUE(gives->clear(memory.data(), memory.size_bytes()).has_value());
    }
    ASSERT_TRUE(gives->record(*event).has_value());
    ASSERT_TRUE(takes->wait_for(*event).has_value());
    ASSERT_TRUE(takes->copy(taken.data(), memory.data(), memory.size_bytes()).has_value());
    EXPECT_FALSE(event->has_come().value());
    std::jthread waits([&] { ASSERT_TRUE(takes->wait(kDeadline).has_value()); });
    ASSERT_TRUE(gives->wait(kDeadline).has_value());
    waits.join();
    EXPECT_TRUE(event->has_come().value());
    EXPECT_THAT(floats(taken), testing::Each(round - 1));
  }
}

// A later recording is another matter.
TEST_F(MadeUpGpu, waits_for_an_event_as_it_was_last_recorded) {
  const auto gives = make_stream();
  const auto takes = make_stream();
  const auto event = device_.make_event().value();
  gpu_.run_late(true);
  ASSERT_TRUE(takes->wait_for(*event).has_value());
  ASSERT_TRUE(gives->record(*event).has_value());
  EXPECT_TRUE(takes->wait(kDeadline).has_value()) << "an event that was never recorded";
  ASSERT_TRUE(takes->wait_for(*event).has_value());
  EXPECT_FALSE(takes->wait(std::chrono::milliseconds(1)).has_value());
  EXPECT_TRUE(device_.is_lost());
}

TEST_F(MadeUpGpu, has_events_of_its_own_that_are_not_recorded_in_recordings) {
  HostGpu other_gpu(4, 4096);
  HostDevice other(other_gpu);
  const auto stream = make_stream();
  const auto own = device_.make_event().value();
  const auto others = other.make_event().value();
  EXPECT_DEATH((void)stream->record(*others), "an event of gpu4 is recorded on a stream of gpu3");
  ASSERT_TRUE(stream->begin_recording().has_value());
  EXPECT_DEATH((void)stream->record(*own), "while gpu3 records");
  EXPECT_DEATH((void)stream->wait_for(*own), "while gpu3 records");
  EXPECT_TRUE(stream->end_recording().has_value());
  gpu_.lose();
  EXPECT_FALSE(own->has_come().has_value());
  EXPECT_FALSE(device_.make_event().has_value());
}

// Behind a kernel, not behind a copy; by itself and in recordings.
TEST_F(MadeUpGpu, begins_a_kernel_before_the_one_before_it_is_done) {
  const GpuMemory memory = allocate(kCount * sizeof(float));
  const GpuMemory other = allocate(memory.size_bytes());
  const GpuMemory seen = allocate(4 * sizeof(float));
  const auto stream = make_stream();
  const auto look = [&](float* to) {
    launch(stream->handle(), {}, look_twice, static_cast<const float*>(begin(memory)), to);
  };
  const auto enqueue = [&] {
    add(*stream, begin(memory), 1);
    look(begin(seen));
    add(*stream, begin(memory), 1);
    ASSERT_TRUE(stream->copy(memory.data(), other.data(), memory.size_bytes()).has_value());
    look(begin(seen) + 2);
  };
  std::fill_n(begin(other), kCount, 7.0F);
  ASSERT_TRUE(stream->begin_recording().has_value());
  enqueue();
  const auto recording = stream->end_recording().value();
  for (const bool recorded : {false, true}) {
    gpu_.run_late(!recorded);
    ASSERT_TRUE(stream->clear(memory.data(), memory.size_bytes()).has_value());
    if (recorded) {
      ASSERT_TRUE(stream->play(*recording).has_value());
    } else {
      enqueue();
    }
    ASSERT_TRUE(stream->wait(kDeadline).has_value());
    EXPECT_THAT(floats(seen), testing::ElementsAre(0, 1, 7, 7)) << recorded;
  }
}

TEST_F(MadeUpGpu, plays_a_recording_on_what_memory_holds_then) {
  for (const bool late : {false, true}) {
    gpu_.run_late(late);
    const GpuMemory memory = allocate(kCount * sizeof(float));
    const GpuMemory result = allocate(kCount * sizeof(float));
    auto recorder = make_stream();
    ASSERT_TRUE(recorder->begin_recording().has_value());
    add(*recorder, begin(memory), 1);
    ASSERT_TRUE(recorder->copy(result.data(), memory.data(), memory.size_bytes()).has_value());
    const auto recording = recorder->end_recording().value();
    ASSERT_TRUE(recorder->wait(kDeadline).has_value());
    EXPECT_TRUE(std::isnan(floats(result)[0])) << "it ran while it was recorded";
    recorder.reset();
    const auto stream = make_stream();
    for (const float before : {10.0F, 20.0F}) {
      std::fill_n(begin(memory), kCount, before);
      ASSERT_TRUE(stream->play(*recording).has_value());
      ASSERT_TRUE(stream->play(*recording).has_value());
      ASSERT_TRUE(stream->wait(kDeadline).has_value());
      EXPECT_THAT(floats(result), testing::Each(before + 2));
    }
  }
  EXPECT_EQ(gpu_.counts().graph_launches, 8U);
  EXPECT_EQ(gpu_.counts().launches, 8U);
}

TEST_F(MadeUpGpu, does_nothing_but_copies_and_kernels_while_it_records) {
  const GpuMemory memory = allocate(256);
  const auto stream = make_stream();
  ASSERT_TRUE(stream->begin_recording().has_value());
  EXPECT_DEATH((void)stream->wait(kDeadline), "waited for while it records");
  EXPECT_DEATH((void)device_.allocate(1, "a test"), "while a stream records");
  EXPECT_DEATH((void)stream->begin_recording(), "records already");
  ASSERT_TRUE(stream->end_recording().has_value());
}

TEST_F(MadeUpGpu, fails_every_call_once_it_is_lost) {
  const GpuMemory memory = allocate(kCount * sizeof(float));
  const auto stream = make_stream();
  ASSERT_TRUE(stream->clear(memory.data(), memory.size_bytes()).has_value());
  ASSERT_TRUE(stream->begin_recording().has_value());
  add(*stream, begin(memory), 1);
  const auto recording = stream->end_recording().value();
  gpu_.lose(1);
  ASSERT_TRUE(stream->wait(kDeadline).has_value());
  add(*stream, begin(memory), 1);
  const auto expect_lost = [](const auto& result) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().kind, ErrorKind::kMachineRefused);
    EXPECT_THAT(result.error().message, HasSubstr("gpu3: "));
    EXPECT_THAT(result.error().message, HasSubstr("the GPU is lost"));
  };
  expect_lost(stream->wait(kDeadline));
  expect_lost(stream->copy(memory.data(), memory.data(), 1));
  expect_lost(stream->clear(memory.data(), 1));
  expect_lost(stream->play(*recording));
  expect_lost(stream->begin_recording());
  expect_lost(device_.allocate(1, "a test"));
  expect_lost(device_.make_stream());
  expect_lost(device_.use());
  expect_lost(device_.reach(0));
  EXPECT_THAT(floats(memory), testing::Each(0)) << "it computed";
}

TEST_F(MadeUpGpu, runs_kernels_for_threads_that_use_it) {
  const GpuMemory memory = allocate(kCount * sizeof(float));
  const auto stream = make_stream();
  HostGpu other(4);
  HostDevice other_device(other);
  ASSERT_TRUE(other_device.use().has_value());
  EXPECT_DEATH(add(*stream, begin(memory), 1), "launched by a thread that uses another");
  ASSERT_TRUE(device_.use().has_value());
  add(*stream, begin(memory), 1);
  std::jthread([&] {
    ASSERT_TRUE(device_.use().has_value());
    add(*stream, begin(memory), 1);
  });
  EXPECT_EQ(gpu_.counts().launches, 2U);
}

TEST_F(MadeUpGpu, reaches_others_unless_it_is_isolated) {
  EXPECT_TRUE(device_.reach(4).has_value());
  gpu_.isolate(true);
  EXPECT_TRUE(device_.reach(3).has_value()) << "itself";
  const auto reached = device_.reach(4);
  ASSERT_FALSE(reached.has_value());
  EXPECT_THAT(reached.error().message, HasSubstr("gpu3 cannot reach the memory of gpu4"));
}

TEST(HostGpus, are_opened_by_number) {
  HostGpu& gpu = host_gpu(2);
  gpu.reset(512);
  {
    const auto device = open_host_device(2).value();
    EXPECT_EQ(device->index(), 2);
    const GpuMemory memory = device->allocate(512, "a test").value();
    EXPECT_EQ(gpu.counts().allocated_bytes, 512U);
  }
  EXPECT_EQ(gpu.counts().allocated_bytes, 0U);
  gpu.lose();
  EXPECT_FALSE(open_host_device(2).has_value());
  gpu.reset();
  EXPECT_EQ(gpu.counts(), HostGpu::Counts{});
  EXPECT_TRUE(open_host_device(2).has_value());
}

TEST(HostGpus, memory_that_outlives_its_device_is_found) {
  EXPECT_DEATH(
      {
        HostGpu gpu;
        GpuMemory memory;
        HostDevice device(gpu);
        memory = device.allocate(1, "a test").value();
      },
      "outlive");
}

}  // namespace
}  // namespace lockstep
