// Keeps pages of the cache and checkpoints of states in a directory, each as a record (record.h) in
// a file of its own. Names cannot be foreseen without the directory's secret: pages of another
// model, arithmetic, format or layout, or of another tenant, have other names. The directory and
// its files are their owner's alone. What cannot be written, read or believed costs time and
// nothing else: it is counted, and the log says so.
//
// A file appears by its rename, whole as far as this process is concerned; after a crash of the
// machine its tag decides. Where the quota is full the oldest use goes first, among the owners that
// have at least as many bytes as the mean; a file's time of change is when it was last used, and
// its name says whose it is, so the order survives a restart.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/descriptor.h"
#include "engine/base/mutex.h"
#include "engine/base/result.h"
#include "engine/tiers/record.h"

namespace lockstep {

class FileTier {
 public:
  struct Settings {
    std::filesystem::path directory;  // is made where it is not there
    uint64_t bytes_max = 0;           // of all records
    // Equal for processes whose pages have the same bytes in the same places.
    std::string identity;
    // A device wears by what is written to it: no more than this at once, and in an hour as much
    // again.
    uint64_t hourly_bytes_max = UINT64_MAX;
  };
  struct Statistics {
    uint64_t bytes = 0;  // of all records that are there
    uint64_t records = 0;
    uint64_t bytes_written = 0;
    uint64_t bytes_read = 0;
    uint64_t evictions = 0;        // records that made way for others
    uint64_t write_failures = 0;   // records that could not be written
    uint64_t unusable = 0;         // records that could not be read or believed
    uint64_t writes_left_out = 0;  // for the hourly limit
  };

  // Makes directory and secret where they are not there, and looks at the names of all records,
  // not into them. Fails with kMachineRefused where the directory cannot be used, or another
  // process uses it.
  static Result<std::unique_ptr<FileTier>> open(const Settings& settings);

  // For hashes of prefixes: the same for every process with this directory and identity.
  HashSecret hash_secret() const { return hash_secret_; }

  // Any thread. Those that move bytes wait for the disk.
  bool contains(const StoredKey& key) const LOCKSTEP_EXCLUDES(mutex_);
  // The same, and it has been used, for this process.
  bool touch(const StoredKey& key) LOCKSTEP_EXCLUDES(mutex_);
  // True if the record is there afterwards.
  bool write(const StoredKey& key, RecordParts parts) LOCKSTEP_EXCLUDES(mutex_);
  // False, and the record is gone, where it cannot be believed; the parts hold anything then.
  bool read(const StoredKey& key, RecordParts parts) LOCKSTEP_EXCLUDES(mutex_);
  void erase(const StoredKey& key) LOCKSTEP_EXCLUDES(mutex_);
  Statistics statistics() const LOCKSTEP_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    uint64_t bytes = 0;
    uint64_t owner = 0;
    uint64_t used = 0;                       // a count of uses
    std::list<std::string>::iterator place;  // in its owner's
  };
  struct Owner {
    std::list<std::string> by_use;  // the oldest first
    uint64_t bytes = 0;
  };

  FileTier(const Settings& settings, Descriptor directory, Descriptor lock,
           const SecretKey& secret);
  void scan();
  bool make_space(uint64_t bytes) LOCKSTEP_EXCLUDES(mutex_);
  bool may_write(uint64_t bytes) LOCKSTEP_REQUIRES(mutex_);
  void add(const std::string& name, uint64_t owner, uint64_t bytes) LOCKSTEP_REQUIRES(mutex_);
  void note_use(Entry& entry) LOCKSTEP_REQUIRES(mutex_);
  // The name of the record to remove next; entries_ is not empty.
  std::string oldest() const LOCKSTEP_REQUIRES(mutex_);
  bool remove(const std::string& name) LOCKSTEP_REQUIRES(mutex_);
  Result<void> write_file(const std::string& name, const StoredKey& key, RecordParts parts,
                          int& error_number);
  Result<void> read_file(const std::string& name, const StoredKey& key, RecordParts parts);
  void note_failure(const std::string& message, int error_number) LOCKSTEP_EXCLUDES(mutex_);

  const Settings settings_;
  const Descriptor directory_;
  const Descriptor lock_;  // of the key's file
  SecretKey record_secret_ = {};
  HashSecret hash_secret_ = {};
  std::atomic<uint64_t> next_temporary_ = 1;
  std::atomic<bool> direct_ = true;  // as long as the file system has not refused

  mutable Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<uint64_t, Owner> owners_ LOCKSTEP_GUARDED_BY(mutex_);  // none without a record
  uint64_t uses_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  uint64_t reserved_bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of records being written
  double allowance_bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Clock::time_point allowance_at_ LOCKSTEP_GUARDED_BY(mutex_) = Clock::now();
  Clock::time_point no_writes_until_ LOCKSTEP_GUARDED_BY(mutex_) = {};
  Clock::time_point quiet_until_ LOCKSTEP_GUARDED_BY(mutex_) = {};
  Statistics statistics_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
