// Measures a GPU: the speeds at which its memory is read and copied, to and from the host as well,
// the cost of a launch, and the speed of products of matrices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/base/result.h"
#include "engine/machine/gpu.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {

struct GpuMeterOptions {
  uint64_t memory_bytes = uint64_t{1} << 30U;  // looked at; less where less is free
  double seconds = 0.2;                        // for each figure, and at least a few rounds
};

// A GPU with memory to measure it with, which is given back at the end. Every figure is the best of
// a few rounds, as befits a limit, by the host's clock: what enqueues the work and waits for it is
// in it. Nothing else should run on the GPU. Called by one thread at a time; each call blocks, and
// fails with kMachineRefused, naming the GPU, where it refuses or does not answer by the deadline
// of a pass. What is lost then is of no more use.
class GpuMeter {
 public:
  // The platform must outlive it. Fails as well where the GPU has no memory left.
  static Result<std::unique_ptr<GpuMeter>> open(const GpuPlatform& platform, const Gpu& gpu,
                                                const GpuMeterOptions& options);

  int gpu() const { return device_->index(); }
  bool is_lost() const { return device_->is_lost(); }
  // The size of the memory that is measured.
  uint64_t memory_bytes() const { return memory_.size_bytes(); }

  // Bytes per second that a kernel reads which does nothing else.
  Result<double> read();
  // Bytes per second copied: each is read and written.
  Result<double> copy();
  // To another GPU's memory, which this one reaches (GpuDevice::reach), or else it fails.
  Result<double> copy_to(const GpuMeter& other);

  struct HostSpeed {
    double from_host = 0;
    double to_host = 0;
  };
  // Through pinned memory on `node` (-1: anywhere), one direction at a time.
  Result<HostSpeed> copy_host(int node);

  struct LaunchTime {
    double alone = 0;     // launched one by one
    double recorded = 0;  // of a recording's
  };
  // Seconds of an empty kernel, among many.
  Result<LaunchTime> launch();

  // Operations per second (a multiplication and an addition are two) of a product of bf16 that is
  // added in f32, by the platform's library and under its promises: as prompts' products are
  // computed. The operands are random, since clocks depend on what is multiplied. The matrices are
  // squares, in the memory that is looked at; the library takes kGpuLibraryBytes beside it. Fails
  // as well where the platform has no library.
  Result<double> product();

 private:
  using Enqueue = std::function<Result<void>()>;

  GpuMeter(const GpuPlatform& platform, std::unique_ptr<GpuDevice> device, double seconds)
      : platform_(platform), device_(std::move(device)), seconds_(seconds) {}

  Result<void> take_memory(uint64_t bytes);
  void enqueue_read(size_t bytes);
  Result<void> fill_at_random(size_t bytes);
  Result<double> bytes_per_second(size_t bytes, const Enqueue& enqueue);
  Result<double> seconds_of(const Enqueue& enqueue);
  Result<double> seconds_of(const Enqueue& enqueue, size_t times);

  const GpuPlatform& platform_;
  std::unique_ptr<GpuDevice> device_;
  std::unique_ptr<GpuStream> stream_;
  GpuMemory memory_;
  GpuMemory sums_;
  double seconds_;
};

}  // namespace lockstep
