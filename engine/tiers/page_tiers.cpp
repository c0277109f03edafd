#include "engine/tiers/page_tiers.h"

#include <algorithm>
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

Result<void> PageTiers::take_memory(uint64_t memory_bytes) {
  std::vector<size_t> part_bytes;
  const std::vector<PageCopier::Part> parts = copier_.parts();
  for (const PageCopier::Part& part : parts) {
    part_bytes.push_back(round_up(part.bytes, kRecordBlockBytes));
    slot_bytes_ += part_bytes.back();
  }
  CHECK(slot_bytes_ > 0, "pages of the cache have no bytes");
  slot_count_ = std::max<size_t>(memory_bytes / slot_bytes_, files_ != nullptr ? kSlotsLeast : 1);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    auto memory = NodeMemory::allocate({.bytes = slot_count_ * part_bytes[rank],
                                        .what = "pages that make way in the KV cache",
                                        .node = parts[rank].node});
    if (!memory) return std::unexpected(memory.error());
    memory_.push_back(std::move(*memory));
  }
  reads_most_ = std::max<size_t>(1, slot_count_ / 2);
  const MutexLock lock(mutex_);
  slots_.resize(slot_count_);
  for (size_t slot = 0; slot < slot_count_; ++slot) {
    free_.push_back(slot_count_ - 1 - slot);
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      slots_[slot].parts.emplace_back(memory_[rank].data() + slot * part_bytes[rank],
                                      part_bytes[rank]);
    }
  }
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
    return reading_ > 0 || writing_ > 0 || !writes_.empty();
  };
  while (is_busy() && settled_.wait_until(mutex_, deadline)) {
  }
  return !is_busy();
}

uint64_t PageTiers::memory_bytes_used() const {
  const MutexLock lock(mutex_);
  return (slots_.size() - free_.size()) * slot_bytes_;
}

bool PageTiers::contains(const StoredKey& key) {
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) return !slots_[found->second].is_doomed;
  }
  return files_ != nullptr && files_->contains(key);
}

PageStore::Answer PageTiers::ask(const StoredKey& key) {
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) {
      const Slot& slot = slots_[found->second];
      if (slot.is_doomed) return Answer::kAbsent;
      return slot.state == State::kReading ? Answer::kComing : Answer::kHere;
    }
  }
  if (files_ == nullptr || !files_->contains(key)) return Answer::kAbsent;
  {
    const MutexLock lock(mutex_);
    if (reading_ >= reads_most_) return Answer::kComing;
    const auto taken = take_slot();
    if (!taken) return Answer::kComing;
    Slot& slot = slots_[*taken];
    slot.state = State::kReading;
    slot.key = key;
    slot.is_read = true;
    slot.goes_first = false;
    known_[key] = *taken;
    reads_.push_back(*taken);
    ++reading_;
  }
  work_.notify_one();
  return Answer::kComing;
}

bool PageTiers::load(const StoredKey& key, uint32_t page) {
  MutexLock lock(mutex_);
  const auto found = known_.find(key);
  if (found == known_.end()) return false;
  const size_t index = found->second;
  Slot& slot = slots_[index];
  if (slot.is_doomed || slot.state == State::kReading) return false;
  lock.unlock();
  copier_.copy_in(page, slot.parts);
  (slot.is_read ? counters_.file_hits : counters_.memory_hits)
      .fetch_add(1, std::memory_order_relaxed);
  lock.lock();
  slot.kept_until = {};
  if (slot.state == State::kHolding) by_use_.splice(by_use_.end(), by_use_, slot.place);
  return true;
}

bool PageTiers::save(const StoredKey& key, uint32_t page, bool makes_way) {
  const bool has_file = files_ != nullptr && files_->touch(key);
  MutexLock lock(mutex_);
  if (const auto found = known_.find(key); found != known_.end()) {
    const Slot& slot = slots_[found->second];
    if (slot.state == State::kHolding) by_use_.splice(by_use_.end(), by_use_, slot.place);
    return true;
  }
  if (has_file) return true;
  const auto taken = take_slot();
  if (!taken) return false;
  Slot& slot = slots_[*taken];
  lock.unlock();
  copier_.copy_out(page, slot.parts);
  counters_.saved.fetch_add(1, std::memory_order_relaxed);
  lock.lock();
  slot.key = key;
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
        by_use_.erase(slot.place);
        free(found->second);
      }
    }
  }
  if (files_ != nullptr) files_->erase(key);
}

// A free slot, or that of the page that has not been used for the longest time. Only the thread
// that runs passes takes slots and frees those that hold, so none goes while it copies.
std::optional<size_t> PageTiers::take_slot() {
  if (!free_.empty()) {
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  const auto now = Clock::now();
  const auto found = std::ranges::find_if(by_use_, [&](size_t slot) LOCKSTEP_REQUIRES(mutex_) {
    return slots_[slot].kept_until <= now;
  });
  if (found == by_use_.end()) return std::nullopt;
  const size_t slot = *found;
  by_use_.erase(found);
  if (files_ == nullptr) counters_.lost.fetch_add(1, std::memory_order_relaxed);
  free(slot);
  free_.pop_back();
  return slot;
}

void PageTiers::hold(size_t index) {
  Slot& slot = slots_[index];
  slot.state = State::kHolding;
  slot.place = by_use_.insert(slot.goes_first ? by_use_.begin() : by_use_.end(), index);
}

void PageTiers::free(size_t index) {
  Slot& slot = slots_[index];
  known_.erase(slot.key);
  slot.state = State::kFree;
  slot.is_doomed = false;
  slot.kept_until = {};
  free_.push_back(index);
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
  --reading_;
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
