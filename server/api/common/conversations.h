// The conversations that /slots tells of, as clients of llama-server know them: a slot is a number
// that a request names (`id_slot`), and has the tokens of the last conversation that it has
// answered. An owner is the name of a key; requests without a key are one owner. An owner sees
// neither the slots nor the files of another.
//
// A file holds a conversation's tokens. Its pages and states are where all others are, in the cache
// and its tiers: to restore it is to prompt them once more, which finds what is still there and
// computes the rest.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/base/result.h"
#include "engine/engine.h"

namespace lockstep {

struct Conversation {
  std::vector<TokenId> tokens;
  std::string cache_salt;
};

class Conversations {
 public:
  static constexpr size_t kFilesMost = 256;  // of one owner
  static constexpr size_t kNameBytesMax = 128;
  static constexpr int kSavesMost = 2;  // at once: each holds the conversation twice

  struct Settings {
    std::filesystem::path directory = {};  // private to the process's user; empty: there are none
    std::string model = {};                // whose tokens they are
    uint32_t slot_count = 1;               // of each owner
    // The most tokens that all slots of one owner have together, and those of all owners.
    size_t owner_tokens_most = std::numeric_limits<size_t>::max();
    size_t tokens_most = std::numeric_limits<size_t>::max();
  };
  explicit Conversations(Settings settings);

  // Any thread calls these; those of files wait for the disk.
  bool has_directory() const { return !settings_.directory.empty(); }
  uint32_t slot_count() const { return settings_.slot_count; }

  // A request of the slot begins.
  void begin(const std::string& owner, uint32_t slot) LOCKSTEP_EXCLUDES(mutex_);
  // A request that has begun ends, and the slot has its conversation; null: it has failed, and the
  // slot keeps the one before. Where that is more than Settings allow, the conversations that have
  // ended least recently are dropped until it is not: the owner's first, then any owner's. Takes no
  // memory.
  void end(const std::string& owner, uint32_t slot, Conversation* conversation) noexcept
      LOCKSTEP_EXCLUDES(mutex_);
  // The last one; empty where there is none.
  Conversation find(const std::string& owner, uint32_t slot) const LOCKSTEP_EXCLUDES(mutex_);
  struct Use {
    size_t tokens = 0;     // of the last conversation
    uint32_t running = 0;  // requests
  };
  Use use(const std::string& owner, uint32_t slot) const LOCKSTEP_EXCLUDES(mutex_);
  // The number of tokens that it has had.
  size_t erase(const std::string& owner, uint32_t slot) LOCKSTEP_EXCLUDES(mutex_);
  // Slots, of all owners, that have a conversation or are processing requests.
  size_t used_slots() const LOCKSTEP_EXCLUDES(mutex_);

  // One of the kSavesMost saves that there may be at once; given back by the destructor.
  class SavePlace;
  // Fails with kUnavailable.
  Result<SavePlace> take_save_place() const;
  // A file of this name is replaced; the bytes that were written. Fails with kInvalidInput: a name
  // that is none, or too many files; with kMachineRefused: it cannot be written.
  Result<uint64_t> save(const SavePlace& place, const std::string& owner, std::string_view name,
                        const Conversation& conversation) const;
  struct Loaded {
    Conversation conversation;
    uint64_t bytes = 0;
  };
  // Fails with kInvalidInput: there is none of this name, or it is damaged, or another model's;
  // with kMachineRefused: it cannot be read.
  Result<Loaded> load(const std::string& owner, std::string_view name) const;
  // Succeeds where there is no such file.
  Result<void> remove(const std::string& owner, std::string_view name) const;

 private:
  struct Slot {
    Conversation last;
    uint32_t running = 0;
    uint64_t ended = 0;  // the number of the end() that gave it `last`
  };
  // Compares with views, which take no memory.
  struct Order {
    using is_transparent = void;
    using Key = std::pair<std::string_view, uint32_t>;
    bool operator()(const Key& a, const Key& b) const { return a < b; }
  };
  using Slots = std::map<std::pair<std::string, uint32_t>, Slot, Order>;

  std::filesystem::path folder(const std::string& owner) const;
  Result<void> make_folder(const std::filesystem::path& folder, std::string_view name) const;
  void remove_if_unused(Slots::iterator slot) LOCKSTEP_REQUIRES(mutex_);
  size_t drop(Slots::iterator slot) LOCKSTEP_REQUIRES(mutex_);
  void drop_oldest(Slots::iterator begin, Slots::iterator end, size_t tokens, size_t tokens_most)
      LOCKSTEP_REQUIRES(mutex_);

  const Settings settings_;
  const std::string temporary_begin_;  // of this process's files until they are whole
  mutable std::atomic<uint64_t> next_temporary_ = 1;
  mutable std::atomic<int> saves_ = 0;
  mutable Mutex mutex_;
  // By owner and slot: those that have a conversation or run.
  Slots slots_ LOCKSTEP_GUARDED_BY(mutex_);
  size_t tokens_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of all slots
  uint64_t ends_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

class Conversations::SavePlace {
 public:
  SavePlace(SavePlace&& other) noexcept : saves_(std::exchange(other.saves_, nullptr)) {}
  SavePlace& operator=(SavePlace&&) = delete;
  ~SavePlace() {
    if (saves_ != nullptr) saves_->fetch_sub(1);
  }

 private:
  friend Conversations;
  explicit SavePlace(std::atomic<int>& saves) : saves_(&saves) {}

  std::atomic<int>* saves_;
};

// The bytes of a file, and what they hold. Fails with kInvalidInput where they are not whole, or of
// another model: what follows "the saved conversation" says which.
std::string conversation_bytes(const Conversation& conversation, std::string_view model);
Result<Conversation> parse_conversation(std::string_view bytes, std::string_view model);

}  // namespace lockstep
