// Pages that the KV cache may lose, and checkpoints of states, in the host's memory and in files
// behind it (docs/tiers.md). Both are bounded. The thread that runs passes copies pages and states
// into slots of the memory and out of them; threads of this write slots to files and read them back
// in the background.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/machine/node_memory.h"
#include "engine/scheduler/page_store.h"
#include "engine/tiers/file_tier.h"

namespace lockstep {

// Moves a page of the KV cache, or the states of a slot, between the ranks' memory and the host's,
// each rank its own part. Called by the thread that runs passes, between them; it returns when the
// copy is there.
class PageCopier {
 public:
  struct Part {
    size_t bytes = 0;  // of one piece of the kind
    int node = -1;     // from whose memory its rank reads; -1: any
  };

  virtual ~PageCopier() = default;
  // By rank. Pieces without a byte are none: models may have no states, or no keys and values.
  virtual std::vector<Part> parts(StoredKind kind) const = 0;
  // `place`: the page, or the slot of states.
  virtual void copy_out(StoredKind kind, uint32_t place,
                        std::span<const std::span<std::byte>> to) = 0;
  virtual void copy_in(StoredKind kind, uint32_t place,
                       std::span<const std::span<std::byte>> from) = 0;
  // In this order.
  virtual void copy_states(std::span<const SlotCopy> copies) = 0;
};

// Counts pages, or states.
struct TierCounters {
  std::atomic<uint64_t> memory_hits = 0;  // loads of what was saved by this process
  std::atomic<uint64_t> file_hits = 0;    // loads of what was read from files
  std::atomic<uint64_t> saved = 0;        // copied out of the cache
  std::atomic<uint64_t> lost = 0;         // that made way in memory and are in no file
};

class PageTiers final : public PageStore {
 public:
  // The least of pages and of states where there are files, whatever the memory's bound is.
  static constexpr size_t kSlotsLeast = 16;
  static constexpr size_t kStateSlotsLeast = 2;
  // The part of the memory that states get beside pages: a conversation's states take about as much
  // of the cache, where checkpoints have an eighth of its memory and two places at least.
  static constexpr uint64_t kStatesPart = 4;
  // A page that has been read waits so long for its sequence before others may take its slot.
  static constexpr std::chrono::seconds kPatience{2};

  // Takes the memory on the nodes of the parts. `files`: none, or what outlives the process. Fails
  // with kMachineRefused. The copier must outlive this.
  static Result<std::unique_ptr<PageTiers>> make(PageCopier& copier, uint64_t memory_bytes,
                                                 std::unique_ptr<FileTier> files);
  // Writes what is left to be written, for at most `kPatience`.
  ~PageTiers() override;

  bool contains(const StoredKey& key) override LOCKSTEP_EXCLUDES(mutex_);
  Answer ask(const StoredKey& key) override LOCKSTEP_EXCLUDES(mutex_);
  bool load(const StoredKey& key, uint32_t place) override LOCKSTEP_EXCLUDES(mutex_);
  bool save(const StoredKey& key, uint32_t place, bool makes_way) override
      LOCKSTEP_EXCLUDES(mutex_);
  void copy_states(std::span<const SlotCopy> copies) override { copier_.copy_states(copies); }
  bool outlives_process() const override { return files_ != nullptr; }
  void erase(const StoredKey& key) override LOCKSTEP_EXCLUDES(mutex_);

  uint64_t memory_bytes() const { return memory_bytes_; }
  uint64_t memory_bytes_used() const LOCKSTEP_EXCLUDES(mutex_);
  const TierCounters& counters(StoredKind kind = StoredKind::kPage) const {
    return counters_[static_cast<size_t>(kind)];
  }
  FileTier::Statistics file_statistics() const {
    return files_ ? files_->statistics() : FileTier::Statistics();
  }
  // Waits until nothing is being written or read. For tests and the end.
  bool settle(std::chrono::milliseconds patience) LOCKSTEP_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t {
    kFree,
    kUnwritten,  // holds a page that waits for its file, or is being written
    kReading,    // waits for a page, or is being filled
    kHolding,    // holds a page, and may be taken for another one
  };
  struct Slot {
    State state = State::kFree;
    StoredKey key = {};
    bool is_doomed = false;   // erased while a thread had it
    bool is_read = false;     // from a file
    bool goes_first = false;  // the cache has it, too
    Clock::time_point kept_until = {};
    std::list<size_t>::iterator place = {};  // in by_use, while kHolding
    std::vector<std::span<std::byte>> parts = {};
  };
  // The slots of one kind.
  struct Shelf {
    size_t slot_count = 0;
    size_t slot_bytes = 0;  // over all ranks; 0: the model has nothing of the kind
    size_t reads_most = 0;  // at once
    std::vector<size_t> free = {};
    std::list<size_t> by_use = {};  // those that hold, the oldest first
    size_t reading = 0;             // queued ones as well
  };

  PageTiers(PageCopier& copier, std::unique_ptr<FileTier> files);
  Result<void> take_memory(uint64_t memory_bytes);
  Result<void> take_shelf(StoredKind kind, uint64_t memory_bytes, size_t slots_least);
  size_t slot_bytes(StoredKind kind) const;
  // A page without a byte, of a model without keys and values: the copy of it is everywhere.
  bool is_nothing(const StoredKey& key) const {
    return key.kind == StoredKind::kPage && !has_pages_;
  }
  void work() LOCKSTEP_EXCLUDES(mutex_);
  void read_slot(size_t slot) LOCKSTEP_EXCLUDES(mutex_);
  void write_slot(size_t slot) LOCKSTEP_EXCLUDES(mutex_);
  Shelf& shelf(StoredKind kind) LOCKSTEP_REQUIRES(mutex_) {
    return shelves_[static_cast<size_t>(kind)];
  }
  std::optional<size_t> take_slot(const StoredKey& key) LOCKSTEP_REQUIRES(mutex_);
  void note_use(const Slot& slot) LOCKSTEP_REQUIRES(mutex_);
  void hold(size_t slot) LOCKSTEP_REQUIRES(mutex_);
  void free(size_t slot) LOCKSTEP_REQUIRES(mutex_);

  PageCopier& copier_;
  std::unique_ptr<FileTier> files_;
  std::vector<NodeMemory> memory_;  // by kind and rank
  uint64_t memory_bytes_ = 0;
  bool has_pages_ = false;  // with any byte
  std::array<TierCounters, kStoredKindCount> counters_;

  mutable Mutex mutex_;
  ConditionVariable work_;     // a queue is not empty, or this ends
  ConditionVariable settled_;  // a thread has done something
  std::vector<Slot> slots_ LOCKSTEP_GUARDED_BY(mutex_);
  std::array<Shelf, kStoredKindCount> shelves_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<StoredKey, size_t> known_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<size_t> reads_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<size_t> writes_ LOCKSTEP_GUARDED_BY(mutex_);
  size_t writing_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // without queued ones
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace lockstep
