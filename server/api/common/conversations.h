// The conversations that /slots tells of, as clients of llama-server know them: a slot is a number
// that a request names (`id_slot`), and has the tokens of the last conversation that it has
// answered. Slots of one owner of keys are no other's, nor are its files.
//
// A file holds a conversation's tokens. Its pages and states are where all others are, in the cache
// and its tiers: to restore it is to prompt them once more, which finds what is still there and
// computes the rest.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
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

  struct Settings {
    std::filesystem::path directory = {};  // private to the process's user; empty: there are none
    std::string model = {};                // whose tokens they are
    uint32_t slot_count = 1;               // of each owner
  };
  explicit Conversations(Settings settings) : settings_(std::move(settings)) {}

  // Any thread calls these; those of files wait for the disk.
  bool has_directory() const { return !settings_.directory.empty(); }
  uint32_t slot_count() const { return settings_.slot_count; }

  // A request of the slot has begun, and ends with what has become of it. end() takes no memory.
  void begin(const std::string& owner, uint32_t slot) LOCKSTEP_EXCLUDES(mutex_);
  void end(const std::string& owner, uint32_t slot, Conversation&& conversation) noexcept
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

  // A file of this name is replaced; the bytes that were written. Fails with kInvalidInput: a name
  // that is none, or too many files; with kMachineRefused: it cannot be written.
  Result<uint64_t> save(const std::string& owner, std::string_view name,
                        const Conversation& conversation) const;
  struct Loaded {
    Conversation conversation;
    uint64_t bytes = 0;
  };
  // Fails with kInvalidInput: there is none of this name, or it is damaged, or another model's.
  Result<Loaded> load(const std::string& owner, std::string_view name) const;
  // A file that is not there is none to remove.
  Result<void> remove(const std::string& owner, std::string_view name) const;

 private:
  struct Slot {
    Conversation last;
    uint32_t running = 0;
  };

  std::filesystem::path folder(const std::string& owner) const;
  Result<void> make_folder(const std::filesystem::path& folder, std::string_view name) const;

  const Settings settings_;
  mutable std::atomic<uint64_t> next_temporary_ = 1;  // names of files until they are whole
  mutable Mutex mutex_;
  // By owner and slot; as many as have been used.
  std::map<std::pair<std::string, uint32_t>, Slot> slots_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The bytes of a file, and what they hold; none where they are not whole, or of another model.
std::string conversation_bytes(const Conversation& conversation, std::string_view model);
std::optional<Conversation> parse_conversation(std::string_view bytes, std::string_view model);

}  // namespace lockstep
