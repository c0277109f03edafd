// An emulated GPU: it runs what its streams hold, on a thread of its own, block by block.
//
// Blocks of all launches that have space run in turns, some instructions each, in an order that the
// seed says: those of different streams, and of one where launches overlap, as early as CUDA allows
// it. So a kernel that waits for another stream's, or another GPU's, gets what it waits for, unless
// that one's blocks would find no space on a real GPU either.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/emulators/gpu/cuda/allocations.h"
#include "tests/emulators/gpu/cuda/multiprocessors.h"
#include "tests/emulators/gpu/cuda/step.h"

namespace lockstep::ptx {

class Gpu {
 public:
  class Stream;
  enum class Failure { kNone, kIllegalAddress, kMisalignedAddress, kLaunch };

  struct Settings {
    uint64_t seed = 0;
    std::chrono::microseconds delay{0};  // at most, of what is enqueued, before it begins
    // Which launch, counted from 1, fails, or is the first that never ends; 0: none.
    uint64_t failing_launch = 0;
    uint64_t hanging_launch = 0;
  };

  Gpu(int index, Allocations& allocations, const Settings& settings);
  // None is ever destroyed: its thread ends with the process.
  ~Gpu() = delete;

  int index() const { return index_; }

  // Any thread may call what follows.
  Stream* make_stream();
  void destroy(Stream* stream);  // when all on it is done
  void enqueue(Stream& stream, const std::vector<StepPointer>& steps);
  bool is_done(const Stream& stream) const;
  void wait(const Stream& stream) const;
  void wait_for_all() const;
  // The failure that has ended the GPU. From then on it runs nothing and waits for nothing.
  Failure failure() const;

 private:
  struct Run;
  struct Resident;
  class View;

  [[noreturn]] void work();
  bool take_new();
  bool begin_runs();
  bool is_due(Run& run);
  bool begin(Run& run);
  bool begin_blocks(Run& run);
  bool do_task(Run& run);
  bool run_blocks();
  BlockState run_slice(Resident& resident);
  void end_runs();
  void fail_by(const Block& block);
  void fail(Failure failure, const std::string& words);

  const int index_;
  const Settings settings_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // Guarded by the mutex.
  std::list<Stream> streams_;
  Failure failure_ = Failure::kNone;
  bool has_new_ = false;

  // The thread's own.
  std::mt19937_64 random_;
  std::vector<Stream*> served_;  // streams_, in an order that changes
  Multiprocessors multiprocessors_;
  std::list<Resident> residents_;
  View* const view_;  // what its blocks reach
  uint64_t launches_ = 0;
  bool has_delayed_ = false;  // a run waits only for its time, or for another stream
  bool has_ended_ = false;    // a run, since end_runs()
};

}  // namespace lockstep::ptx
