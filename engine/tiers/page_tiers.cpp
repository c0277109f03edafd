#include "engine/tiers/page_tiers.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

// A record is one call to the disk: so many at once keep it busy, and as many cores at most.
constexpr size_t kThreads = 3;
// The writers among them: a read never waits for more than one write.
constexpr size_t kWritersMost = 2;

}  // namespace

Result<std::unique_ptr<PageTiers>> PageTiers::make(PageCopier& copier, uint64_t memory_bytes,
                                                   std::unique_ptr<FileTier> files) {
  std::unique_ptr<PageTiers> tiers(new PageTiers(copier, std::move(files)));
  if (auto taken = tiers->take_memory(memory_bytes); !taken) {
    return std::unexpected(taken.error());
  }
  try {
    if (!tiers->files_) return tiers;
    for (size_t index = 0; index < kThreads; ++index) {
      tiers->threads_.emplace_back([&all = *tiers] { all.work(); });
    }
  } catch (const std::system_error& error) {
    return machine_refused("a thread that reads and writes pages cannot be started: {}",
                           error.what());
  }
  return tiers;
}

PageTiers::PageTiers(PageCopier& copier, std::unique_ptr<FileTier> files)
    : copier_(copier), files_(std::move(files)) {}

size_t PageTiers::slot_bytes(StoredKind kind) const {
  size_t bytes = 0;
  for (const PageCopier::Part& part : copier_.parts(kind)) {
    bytes += round_up(part.bytes, kRecordBlockBytes);
  }
  return bytes;
}

Result<void> PageTiers::take_memory(uint64_t memory_bytes) {
  has_pages_ = slot_bytes(StoredKind::kPage) > 0;
  const bool has_states = slot_bytes(StoredKind::kState) > 0;
  CHECK(has_pages_ || has_states, "neither pages nor states have a byte");
  uint64_t states_bytes = has_states ? memory_bytes : 0;
  if (has_pages_) states_bytes /= kStatesPart;
  if (has_pages_) {
    auto taken = take_shelf(StoredKind::kPage, memory_bytes - states_bytes, kSlotsLeast);
    if (!taken) return taken;
  }
  return has_states ? take_shelf(StoredKind::kState, states_bytes, kStateSlotsLeast)
                    : Result<void>();
}

Result<void> PageTiers::take_shelf(StoredKind kind, uint64_t memory_bytes, size_t slots_least) {
  Shelf made;
  made.slot_bytes = slot_bytes(kind);
  made.slot_count =
      std::max<size_t>(memory_bytes / made.slot_bytes, files_ != nullptr ? slots_least : 1);
  made.reads_most = std::max<size_t>(1, made.slot_count / 2);
  std::vector<Slot> slots(made.slot_count);
  for (const PageCopier::Part& part : copier_.parts(kind)) {
    const size_t part_bytes = round_up(part.bytes, kRecordBlockBytes);
    std::byte* begin = nullptr;  // where the rank has no part
    if (part_bytes > 0) {
      auto memory = NodeMemory::allocate({.bytes = made.slot_count * part_bytes,
                                          .what = "pages that make way in the KV cache",
                                          .node = part.node});
      if (!memory) return std::unexpected(memory.error());
      memory_.push_back(std::move(*memory));
      begin = memory_.back().data();
    }
    for (size_t slot = 0; slot < made.slot_count; ++slot) {
      slots[slot].parts.emplace_back(part_bytes > 0 ? begin + slot * part_bytes : begin,
                                     part_bytes);
    }
  }
  memory_bytes_ += made.slot_count * made.slot_bytes;
  const MutexLock lock(mutex_);
  for (size_t slot = slots.size(); slot-- > 0;) made.free.push_back(slots_.size() + slot);
  std::ranges::move(slots, std::back_inserter(slots_));
  shelf(kind) = std::move(made);
  return {};
}

PageTiers::~PageTiers() {
  if (files_ != nullptr) settle(kPatience);
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    reads_.clear();
    writes_.clear();
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool PageTiers::settle(std::chrono::milliseconds patience) {
  const auto deadline = ConditionVariable::deadline_in(patience);
  const MutexLock lock(mutex_);
  const auto is_busy = [this]() LOCKSTEP_REQUIRES(mutex_) {
    const bool is_reading =
        std::ranges::any_of(shelves_, [](const Shelf& shelf) { return shelf.reading > 0; });
    return is_reading || writing_ > 0 || !writes_.empty();
  };
  while (is_busy() && settled_.wait_until(mutex_, deadline)) {
  }
  return !is_busy();
}

uint64_t PageTiers::memory_bytes_used() const {
  const MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const Shelf& shelf : shelves_) {
    bytes += (shelf.slot_count - shelf.free.size()) * shelf.slot_bytes;
  }
  return bytes;
}

bool PageTiers::contains(const StoredKey& key) {
  if (is_nothing(key)) return true;
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) return !slots_[found->second].is_doomed;
  }
  return files_ != nullptr && files_->contains(key);
}

PageStore::Answer PageTiers::ask(const StoredKey& key) {
  if (is_nothing(key)) return Answer::kHere;
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) {
      const Slot& slot = slots_[found->second];
      if (slot.is_doomed) return Answer::kAbsent;
      if (slot.state == State::kReading) return Answer::kComing;
      note_use(slot);  // what is asked for next takes the slots of others
      return Answer::kHere;
    }
  }
  if (files_ == nullptr || !files_->contains(key)) return Answer::kAbsent;
  {
    const MutexLock lock(mutex_);
    Shelf& own = shelf(key.kind);
    if (own.reading >= own.reads_most) return Answer::kComing;
    const auto taken = take_slot(key);
    if (!taken) return Answer::kComing;
    Slot& slot = slots_[*taken];
    slot.state = State::kReading;
    slot.is_read = true;
    slot.goes_first = false;
    known_[key] = *taken;
    reads_.push_back(*taken);
    ++own.reading;
  }
  work_.notify_one();
  return Answer::kComing;
}

bool PageTiers::load(const StoredKey& key, uint32_t place) {
  if (is_nothing(key)) return true;
  MutexLock lock(mutex_);
  const auto found = known_.find(key);
  if (found == known_.end()) return false;
  const size_t index = found->second;
  Slot& slot = slots_[index];
  if (slot.is_doomed || slot.state == State::kReading) return false;
  lock.unlock();
  copier_.copy_in(key.kind, place, slot.parts);
  TierCounters& counters = counters_[static_cast<size_t>(key.kind)];
  (slot.is_read ? counters.file_hits : counters.memory_hits)
      .fetch_add(1, std::memory_order_relaxed);
  lock.lock();
  slot.kept_until = {};
  note_use(slot);
  return true;
}

void PageTiers::note_use(const Slot& slot) {
  if (slot.state != State::kHolding) return;
  std::list<size_t>& by_use = shelf(slot.key.kind).by_use;
  by_use.splice(by_use.end(), by_use, slot.place);
}

bool PageTiers::save(const StoredKey& key, uint32_t place, bool makes_way) {
  if (is_nothing(key)) return true;
  const bool has_file = files_ != nullptr && files_->touch(key);
  MutexLock lock(mutex_);
  if (const auto found = known_.find(key); found != known_.end()) {
    note_use(slots_[found->second]);
    return true;
  }
  if (has_file) return true;
  const auto taken = take_slot(key);
  if (!taken) return false;
  Slot& slot = slots_[*taken];
  lock.unlock();
  copier_.copy_out(key.kind, place, slot.parts);
  counters_[static_cast<size_t>(key.kind)].saved.fetch_add(1, std::memory_order_relaxed);
  lock.lock();
  slot.is_read = false;
  slot.goes_first = !makes_way;
  known_[key] = *taken;
  if (files_ == nullptr) {
    hold(*taken);
    return true;
  }
  slot.state = State::kUnwritten;
  writes_.push_back(*taken);
  lock.unlock();
  work_.notify_one();
  return true;
}

void PageTiers::erase(const StoredKey& key) {
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) {
      Slot& slot = slots_[found->second];
      slot.is_doomed = true;
      if (slot.state == State::kHolding) {
        shelf(key.kind).by_use.erase(slot.place);
        free(found->second);
      }
    }
  }
  if (files_ != nullptr) files_->erase(key);
}

// A free slot, or that of the piece of this kind that has not been used for the longest time. Only
// the thread that runs passes takes slots and frees those that hold, so none goes while it copies.
std::optional<size_t> PageTiers::take_slot(const StoredKey& key) {
  Shelf& own = shelf(key.kind);
  if (own.free.empty()) {
    const auto now = Clock::now();
    const auto found = std::ranges::find_if(own.by_use, [&](size_t slot) LOCKSTEP_REQUIRES(mutex_) {
      return slots_[slot].kept_until <= now;
    });
    if (found == own.by_use.end()) return std::nullopt;
    const size_t oldest = *found;
    own.by_use.erase(found);
    if (files_ == nullptr) {
      counters_[static_cast<size_t>(key.kind)].lost.fetch_add(1, std::memory_order_relaxed);
    }
    free(oldest);
  }
  const size_t slot = own.free.back();
  own.free.pop_back();
  slots_[slot].key = key;
  return slot;
}

void PageTiers::hold(size_t index) {
  Slot& slot = slots_[index];
  slot.state = State::kHolding;
  std::list<size_t>& by_use = shelf(slot.key.kind).by_use;
  slot.place = by_use.insert(slot.goes_first ? by_use.begin() : by_use.end(), index);
}

void PageTiers::free(size_t index) {
  Slot& slot = slots_[index];
  known_.erase(slot.key);
  slot.state = State::kFree;
  slot.is_doomed = false;
  slot.kept_until = {};
  shelf(slot.key.kind).free.push_back(index);
}

void PageTiers::work() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stop_ && reads_.empty() && (writes_.empty() || writing_ >= kWritersMost)) {
      work_.wait(mutex_);
    }
    if (stop_) return;
    const bool reads = !reads_.empty();
    std::deque<size_t>& queue = reads ? reads_ : writes_;
    const size_t slot = queue.front();
    queue.pop_front();
    if (!reads) ++writing_;
    lock.unlock();
    reads ? read_slot(slot) : write_slot(slot);
    lock.lock();
    settled_.notify_all();
    work_.notify_one();
  }
}

void PageTiers::read_slot(size_t index) {
  MutexLock lock(mutex_);
  Slot& slot = slots_[index];
  const StoredKey key = slot.key;
  lock.unlock();
  bool is_whole = false;
  log_surely([&] { is_whole = files_->read(key, slot.parts); });
  lock.lock();
  --shelf(key.kind).reading;
  if (!is_whole || slot.is_doomed) return free(index);
  hold(index);
  slot.kept_until = Clock::now() + kPatience;
}

void PageTiers::write_slot(size_t index) {
  MutexLock lock(mutex_);
  Slot& slot = slots_[index];
  const StoredKey key = slot.key;
  const bool is_wanted = !slot.is_doomed;
  lock.unlock();
  if (is_wanted) log_surely([&] { static_cast<void>(files_->write(key, slot.parts)); });
  lock.lock();
  --writing_;
  if (!slot.is_doomed) return hold(index);
  lock.unlock();
  files_->erase(key);  // before anybody can ask for it again
  lock.lock();
  free(index);
}

}  // namespace lockstep
