#include "tests/emulators/gpu/cuda/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

namespace lockstep::ptx {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks at flags that another GPU or stream is to set.
constexpr std::chrono::microseconds kRest{20};

// How many instructions a block runs before another's turn. Most launches run a block after the
// other, as long as none of them waits: that is faster, and an order that a GPU may have as well.
// The others run all that have space at once, a few instructions each.
constexpr uint64_t kLongSlice = 1U << 20U;
constexpr uint64_t kShortSlice = 2048;
constexpr uint64_t kLaunchesOfOneSideBySide = 4;

uint32_t threads_of(const Launch& launch) {
  return launch.block.x * launch.block.y * launch.block.z;
}

uint32_t shared_bytes_of(const Launch& launch) {
  return launch.dynamic_shared_bytes + launch.kernel->static_shared_bytes();
}

}  // namespace

// One step on its way through a stream.
struct Gpu::Run {
  StepPointer step;
  Run* before = nullptr;                 // on the stream; null: everything before is done
  std::optional<Clock::time_point> due;  // where it is delayed
  bool has_begun = false;
  bool is_done = false;
  bool hangs = false;
  // For kernels: how their blocks run, and how far they have come.
  bool is_side_by_side = false;
  uint64_t seed = 0;
  std::vector<uint32_t> order;
  size_t begun = 0;
  size_t ended = 0;
  size_t letting = 0;   // which let the next launch begin, or have ended
  size_t going_on = 0;  // resident, and waiting for nothing

  // A kernel's griddepcontrol.wait returns when this is true.
  bool launch_before_is_done() const { return before == nullptr || before->is_done; }

  bool lets_next_begin() const {
    if (step->kind != Step::Kind::kKernel) return is_done;
    return has_begun && letting == order.size();
  }

  bool may_begin() const {
    if (has_begun) return false;
    if (before == nullptr) return true;
    return step->begins_early && before->step->is_kernel() && before->lets_next_begin();
  }
};

class Gpu::Stream {
 public:
  // Guarded by the GPU's mutex.
  std::deque<StepPointer> incoming;
  size_t outstanding = 0;  // not done
  bool is_destroyed = false;
  // The thread's own.
  std::list<Run> runs;
};

struct Gpu::Resident {
  Run* run;
  Block block;
  int multiprocessor;
  bool goes_on = true;
  bool lets_next = false;
  bool is_done = false;
};

class Gpu::View final : public Memory {
 public:
  View(const Allocations& allocations, int gpu) : allocations_(allocations), gpu_(gpu) {}

  MemoryRange find(uint64_t address) override {
    const auto found = allocations_.find(gpu_, address, 1, why_);
    return found ? found->range : MemoryRange();
  }

  // Why an address was refused since it was forgotten last; empty: none was.
  const std::string& why() const { return why_; }
  void forget_why() { why_.clear(); }

 private:
  const Allocations& allocations_;
  int gpu_;
  std::string why_;
};

Gpu::Gpu(int index, Allocations& allocations, const Settings& settings)
    : index_(index),
      settings_(settings),
      random_(settings.seed),
      view_(new View(allocations, index)) {
  std::thread([this] { work(); }).detach();
}

Gpu::Stream* Gpu::make_stream() {
  const std::lock_guard lock(mutex_);
  return &streams_.emplace_back();
}

void Gpu::destroy(Stream* stream) {
  const std::lock_guard lock(mutex_);
  stream->is_destroyed = true;
}

void Gpu::enqueue(Stream& stream, const std::vector<StepPointer>& steps) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != Failure::kNone) return;
    stream.incoming.insert(stream.incoming.end(), steps.begin(), steps.end());
    stream.outstanding += steps.size();
    has_new_ = true;
  }
  changed_.notify_all();
}

bool Gpu::is_done(const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  return stream.outstanding == 0;
}

void Gpu::wait(const Stream& stream) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stream.outstanding == 0; });
}

void Gpu::wait_for_all() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::all_of(streams_, [](const Stream& each) { return each.outstanding == 0; });
  });
}

Gpu::Failure Gpu::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Gpu::work() {
  while (true) {
    bool moves = take_new();
    moves |= begin_runs();
    moves |= run_blocks();
    end_runs();
    if (moves) continue;
    std::unique_lock lock(mutex_);
    if (has_new_) continue;
    if (residents_.empty() && !has_delayed_) {
      changed_.wait(lock, [this] { return has_new_; });
    } else {
      changed_.wait_for(lock, kRest, [this] { return has_new_; });
    }
  }
}

bool Gpu::take_new() {
  const std::lock_guard lock(mutex_);
  streams_.remove_if(
      [](const Stream& stream) { return stream.is_destroyed && stream.outstanding == 0; });
  served_.clear();
  for (Stream& stream : streams_) {
    served_.push_back(&stream);
    for (StepPointer& step : stream.incoming) {
      Run* const before = stream.runs.empty() ? nullptr : &stream.runs.back();
      stream.runs.emplace_back().step = std::move(step);
      stream.runs.back().before = before;
    }
    stream.incoming.clear();
  }
  return std::exchange(has_new_, false);
}

bool Gpu::begin_runs() {
  bool moves = false;
  has_delayed_ = false;
  std::ranges::shuffle(served_, random_);
  for (Stream* const stream : served_) {
    for (Run& run : stream->runs) {
      if (run.may_begin()) {
        if (is_due(run)) {
          if (!begin(run)) return true;
          moves = true;
        } else {
          has_delayed_ = true;
        }
      }
      if (!run.has_begun) break;
      if (run.step->kind == Step::Kind::kKernel) {
        moves |= begin_blocks(run);
      } else if (!run.is_done && !do_task(run)) {
        return true;
      }
    }
  }
  return moves;
}

// Once it might begin.
bool Gpu::is_due(Run& run) {
  if (run.step->has_come && !run.step->has_come()) return false;
  if (settings_.delay.count() == 0) return true;
  const Clock::time_point now = Clock::now();
  if (!run.due) {
    const auto most = static_cast<uint64_t>(settings_.delay.count()) + 1;
    run.due = now + std::chrono::microseconds(random_() % most);
  }
  return now >= *run.due;
}

// False: the GPU has failed.
bool Gpu::begin(Run& run) {
  run.has_begun = true;
  if (run.step->kind != Step::Kind::kKernel) return true;
  launches_ += 1;
  if (launches_ == settings_.failing_launch) {
    fail(Failure::kLaunch, "a launch fails, as the environment asks for");
    return false;
  }
  run.hangs = settings_.hanging_launch != 0 && launches_ >= settings_.hanging_launch;
  const Size3& grid = run.step->launch.grid;
  run.order.resize(size_t{grid.x} * grid.y * grid.z);
  std::iota(run.order.begin(), run.order.end(), 0U);
  std::ranges::shuffle(run.order, random_);
  run.is_side_by_side = random_() % kLaunchesOfOneSideBySide == 0;
  run.seed = random_();
  return true;
}

bool Gpu::begin_blocks(Run& run) {
  if (run.hangs) return false;
  const Launch& launch = run.step->launch;
  bool moves = false;
  while (run.begun < run.order.size() && (run.is_side_by_side || run.going_on == 0)) {
    const int place = multiprocessors_.take(threads_of(launch), shared_bytes_of(launch));
    if (place < 0) break;
    const uint32_t number = run.order[run.begun++];
    const Size3& grid = launch.grid;
    const Size3 index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
    residents_.push_back({&run, Block(launch, index, *view_, run.seed + number), place});
    run.going_on += 1;
    moves = true;
  }
  return moves;
}

bool Gpu::do_task(Run& run) {
  const std::string failed = run.step->task();
  if (!failed.empty()) {
    fail(Failure::kIllegalAddress, failed);
    return false;
  }
  run.is_done = true;
  has_ended_ = true;
  return true;
}

// Each resident block has a turn. False: none of them got on.
bool Gpu::run_blocks() {
  std::vector<Resident*> turns;
  for (Resident& resident : residents_) turns.push_back(&resident);
  std::ranges::shuffle(turns, random_);
  bool moves = false;
  for (Resident* const resident : turns) {
    const BlockState state = run_slice(*resident);
    if (state == BlockState::kFailed) {
      fail_by(resident->block);
      return true;
    }
    moves |= state == BlockState::kGoesOn || state == BlockState::kDone;
  }
  std::erase_if(residents_, [](const Resident& resident) { return resident.is_done; });
  return moves;
}

BlockState Gpu::run_slice(Resident& resident) {
  Run& run = *resident.run;
  view_->forget_why();
  const uint64_t slice = run.is_side_by_side ? 1 + random_() % kShortSlice : kLongSlice;
  const BlockState state = resident.block.run(slice, run.launch_before_is_done());
  resident.is_done = state == BlockState::kDone;
  const bool goes_on = state == BlockState::kGoesOn;
  if (resident.goes_on != goes_on) run.going_on += goes_on ? 1U : size_t(-1);
  resident.goes_on = goes_on;
  if (!resident.lets_next && (resident.is_done || resident.block.lets_next_begin())) {
    resident.lets_next = true;
    run.letting += 1;
  }
  if (!resident.is_done) return state;
  const Launch& launch = run.step->launch;
  multiprocessors_.give_back(resident.multiprocessor, threads_of(launch), shared_bytes_of(launch));
  run.ended += 1;
  run.is_done = run.ended == run.order.size();
  has_ended_ |= run.is_done;
  return state;
}

// Takes what is done from the front of the streams, and tells who waits for it.
void Gpu::end_runs() {
  if (!std::exchange(has_ended_, false)) return;
  {
    const std::lock_guard lock(mutex_);
    for (Stream* const stream : served_) {
      while (!stream->runs.empty() && stream->runs.front().is_done) {
        stream->runs.pop_front();
        stream->outstanding -= 1;
        if (!stream->runs.empty()) stream->runs.front().before = nullptr;
      }
    }
  }
  changed_.notify_all();
}

void Gpu::fail_by(const Block& block) {
  const bool is_refused = block.fault() == Fault::kNoMemory && !view_->why().empty();
  const std::string words =
      is_refused ? fmt::format("{} ({})", block.failure(), view_->why()) : block.failure();
  switch (block.fault()) {
    case Fault::kMisaligned:
      return fail(Failure::kMisalignedAddress, words);
    case Fault::kNoMemory:
      return fail(Failure::kIllegalAddress, words);
    case Fault::kOther:
      break;
  }
  fail(Failure::kLaunch, words);
}

void Gpu::fail(Failure failure, const std::string& words) {
  fmt::print(stderr, "emulated gpu{}: {}\n", index_, words);
  residents_.clear();
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    for (Stream& stream : streams_) {
      stream.runs.clear();
      stream.incoming.clear();
      stream.outstanding = 0;
    }
  }
  changed_.notify_all();
}

}  // namespace lockstep::ptx
