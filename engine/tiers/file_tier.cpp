#include "engine/tiers/file_tier.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <tuple>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr const char* kKeyFile = "key";
constexpr std::array<std::string_view, kStoredKindCount> kRecordEnds = {".page", ".state"};
constexpr std::string_view kTemporaryBegin = "new-";

// After a write that failed: a full disk is not asked again for every page.
constexpr std::chrono::seconds kPauseAfterFailure{10};
// Between two lines of the log on failures.
constexpr std::chrono::seconds kQuiet{10};

template <typename... Arguments>
std::unexpected<Error> unusable(const std::filesystem::path& directory,
                                fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  return machine_refused("{}: {}", directory.string(),
                         fmt::format(format, std::forward<Arguments>(arguments)...));
}

// Whether it is a file of this user, and no other may read or write it.
bool is_private_file(int descriptor, struct stat& status) {
  return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

Result<Descriptor> open_directory(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return unusable(path, "it cannot be made: {}", std::strerror(errno));
  }
  Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!directory.is_open() || ::fstat(directory.number(), &status) != 0) {
    return unusable(path, "it cannot be opened: {}", std::strerror(errno));
  }
  if (status.st_uid != ::geteuid()) {
    return unusable(path, "it is owned by user {}, not by {}: chown it", status.st_uid,
                    ::geteuid());
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0 && ::fchmod(directory.number(), S_IRWXU) != 0) {
    return unusable(path, "others have access to it (mode {:04o}): chmod go-rwx",
                    status.st_mode & 07777U);
  }
  return directory;
}

// The secret lies in a file beside the records. One that is torn is made anew: the records that it
// was for are not found any more, and make way in time.
Result<std::pair<Descriptor, SecretKey>> open_key(const std::filesystem::path& path,
                                                  int directory) {
  Descriptor file(
      ::openat(directory, kKeyFile, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!file.is_open()) return unusable(path, "its key cannot be opened: {}", std::strerror(errno));
  struct stat status {};
  if (!is_private_file(file.number(), status)) {
    return unusable(path, "its key is not a file of this user alone: remove it");
  }
  if (::flock(file.number(), LOCK_EX | LOCK_NB) != 0) {
    return unusable(path, "another process uses it: give each its own");
  }
  SecretKey key;
  const bool is_whole =
      status.st_size == static_cast<off_t>(key.size()) &&
      ::pread(file.number(), key.data(), key.size(), 0) == static_cast<ssize_t>(key.size());
  if (!is_whole) {
    fill_random(key);
    const bool is_written =
        ::ftruncate(file.number(), 0) == 0 &&
        ::pwrite(file.number(), key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()) &&
        ::fsync(file.number()) == 0;
    if (!is_written) {
      return unusable(path, "its key cannot be written: {}", std::strerror(errno));
    }
  }
  return std::pair(std::move(file), key);
}

std::string name_of(const StoredKey& key) {
  return fmt::format("{:016x}{:016x}-{}-{:016x}{}", key.prefix.high, key.prefix.low, key.group,
                     key.owner, kRecordEnds[static_cast<size_t>(key.kind)]);
}

// As its name says; 0 where it says nothing.
uint64_t owner_of(std::string_view name) {
  name = name.substr(0, name.rfind('.'));
  name.remove_prefix(std::min(name.size(), name.rfind('-') + 1));
  uint64_t owner = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), owner, 16);
  return error == std::errc() && end == name.data() + name.size() ? owner : 0;
}

}  // namespace

Result<std::unique_ptr<FileTier>> FileTier::open(const Settings& settings) {
  auto directory = open_directory(settings.directory);
  if (!directory) return std::unexpected(directory.error());
  auto key = open_key(settings.directory, directory->number());
  if (!key) return std::unexpected(key.error());
  auto& [lock, secret] = *key;
  std::unique_ptr<FileTier> tier(
      new FileTier(settings, std::move(*directory), std::move(lock), secret));
  tier->scan();
  return tier;
}

FileTier::FileTier(const Settings& settings, Descriptor directory, Descriptor lock,
                   const SecretKey& secret)
    : settings_(settings), directory_(std::move(directory)), lock_(std::move(lock)) {
  record_secret_ = derive_key(secret, "records " + settings.identity);
  const SecretKey names = derive_key(secret, "names " + settings.identity);
  std::memcpy(hash_secret_.data(), names.data(), sizeof hash_secret_);
  allowance_bytes_ = static_cast<double>(settings.hourly_bytes_max);
}

// Records of other identities count as well: they are the oldest soon. Files that were being
// written when a process ended are removed; others are left alone.
void FileTier::scan() {
  const int copy = ::openat(directory_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(copy < 0 ? nullptr : ::fdopendir(copy),
                                                    [](DIR* one) { return ::closedir(one); });
  if (listing == nullptr) return;
  std::vector<std::tuple<int64_t, int64_t, std::string, uint64_t>> found;
  while (const dirent* const file = ::readdir(listing.get())) {
    const std::string name = file->d_name;
    if (name.starts_with(kTemporaryBegin)) ::unlinkat(directory_.number(), name.c_str(), 0);
    const auto ends_it = [&](std::string_view end) { return name.ends_with(end); };
    if (std::ranges::none_of(kRecordEnds, ends_it)) continue;
    struct stat status {};
    if (::fstatat(directory_.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(status.st_mode)) continue;
    found.emplace_back(status.st_mtim.tv_sec, status.st_mtim.tv_nsec, name,
                       static_cast<uint64_t>(status.st_size));
  }
  std::ranges::sort(found);
  {
    const MutexLock lock(mutex_);
    for (const auto& [seconds, nanoseconds, name, bytes] : found) {
      add(name, owner_of(name), bytes);
    }
  }
  make_space(0);
}

void FileTier::add(const std::string& name, uint64_t owner, uint64_t bytes) {
  remove(name);
  Owner& own = owners_[owner];
  entries_[name] = {bytes, owner, ++uses_, own.by_use.insert(own.by_use.end(), name)};
  own.bytes += bytes;
  statistics_.bytes += bytes;
  ++statistics_.records;
}

bool FileTier::remove(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return false;
  statistics_.bytes -= found->second.bytes;
  --statistics_.records;
  const auto own = owners_.find(found->second.owner);
  own->second.bytes -= found->second.bytes;
  own->second.by_use.erase(found->second.place);
  if (own->second.by_use.empty()) owners_.erase(own);
  entries_.erase(found);
  return true;
}

void FileTier::note_use(Entry& entry) {
  std::list<std::string>& by_use = owners_.at(entry.owner).by_use;
  by_use.splice(by_use.end(), by_use, entry.place);
  entry.used = ++uses_;
}

// As the cache does it: no owner's records make way for those of one that has more.
std::string FileTier::oldest() const {
  const std::string* oldest = nullptr;
  uint64_t used = UINT64_MAX;
  for (const auto& [owner, own] : owners_) {
    const std::string& front = own.by_use.front();
    const uint64_t front_used = entries_.at(front).used;
    if (own.bytes < statistics_.bytes / owners_.size() || front_used >= used) continue;
    used = front_used;
    oldest = &front;
  }
  return *oldest;
}

bool FileTier::contains(const StoredKey& key) const {
  const MutexLock lock(mutex_);
  return entries_.contains(name_of(key));
}

bool FileTier::touch(const StoredKey& key) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(name_of(key));
  if (found == entries_.end()) return false;
  note_use(found->second);
  return true;
}

// The oldest make way until so many bytes more fit, which are reserved.
bool FileTier::make_space(uint64_t bytes) {
  MutexLock lock(mutex_);
  if (bytes > settings_.bytes_max) return false;
  while (statistics_.bytes + reserved_bytes_ + bytes > settings_.bytes_max) {
    if (entries_.empty()) return false;
    const std::string name = oldest();
    remove(name);
    ++statistics_.evictions;
    lock.unlock();
    ::unlinkat(directory_.number(), name.c_str(), 0);
    lock.lock();
  }
  reserved_bytes_ += bytes;
  return true;
}

bool FileTier::may_write(uint64_t bytes) {
  const auto now = Clock::now();
  if (now < no_writes_until_) return false;
  const auto most = static_cast<double>(settings_.hourly_bytes_max);
  const double hours = std::chrono::duration<double, std::ratio<3600>>(now - allowance_at_).count();
  allowance_bytes_ = std::min(most, allowance_bytes_ + hours * most);
  allowance_at_ = now;
  if (allowance_bytes_ < static_cast<double>(bytes)) {
    ++statistics_.writes_left_out;
    return false;
  }
  allowance_bytes_ -= static_cast<double>(bytes);
  return true;
}

bool FileTier::write(const StoredKey& key, RecordParts parts) {
  const std::string name = name_of(key);
  const uint64_t bytes = record_bytes(parts);
  {
    const MutexLock lock(mutex_);
    if (entries_.contains(name)) return true;
    if (!may_write(bytes)) return false;
  }
  if (!make_space(bytes)) return false;
  int error_number = 0;
  const auto written = write_file(name, key, parts, error_number);
  {
    const MutexLock lock(mutex_);
    reserved_bytes_ -= bytes;
    if (written) {
      add(name, key.owner, bytes);
      statistics_.bytes_written += bytes;
      return true;
    }
    ++statistics_.write_failures;
    no_writes_until_ = Clock::now() + kPauseAfterFailure;
  }
  note_failure(fmt::format("a page of the cache cannot be kept in {}: {}; writing pauses for {} s",
                           settings_.directory.string(), written.error().message,
                           kPauseAfterFailure.count()),
               error_number);
  return false;
}

Result<void> FileTier::write_file(const std::string& name, const StoredKey& key, RecordParts parts,
                                  int& error_number) {
  const std::string temporary = fmt::format("{}{}", kTemporaryBegin, next_temporary_++);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
  const auto open_new = [&](int more) {
    return ::openat(directory_.number(), temporary.c_str(), flags | more, S_IRUSR | S_IWUSR);
  };
  Descriptor file(direct_ ? open_new(O_DIRECT) : -1);
  if (!file.is_open() && (!direct_ || errno == EINVAL)) {
    direct_ = false;
    file = Descriptor(open_new(0));
  }
  if (!file.is_open()) {
    error_number = errno;
    return machine_refused("{}", std::strerror(error_number));
  }
  auto written = write_record(file.number(), record_secret_, key, parts, error_number);
  if (written &&
      ::renameat(directory_.number(), temporary.c_str(), directory_.number(), name.c_str()) != 0) {
    error_number = errno;
    written = machine_refused("{}", std::strerror(error_number));
  }
  if (!written) ::unlinkat(directory_.number(), temporary.c_str(), 0);
  if (error_number == EINVAL) direct_ = false;  // some file systems refuse at the first write
  return written;
}

bool FileTier::read(const StoredKey& key, RecordParts parts) {
  const std::string name = name_of(key);
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return false;
    note_use(found->second);
  }
  const auto read = read_file(name, key, parts);
  {
    const MutexLock lock(mutex_);
    if (read) {
      statistics_.bytes_read += record_bytes(parts);
      return true;
    }
    if (!remove(name)) return false;  // it has made way meanwhile
    ++statistics_.unusable;
  }
  ::unlinkat(directory_.number(), name.c_str(), 0);
  note_failure(fmt::format("a page that was kept in {} is not used, and is removed: {}",
                           settings_.directory.string(), read.error().message),
               0);
  return false;
}

Result<void> FileTier::read_file(const std::string& name, const StoredKey& key, RecordParts parts) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Descriptor file(direct_ ? ::openat(directory_.number(), name.c_str(), flags | O_DIRECT) : -1);
  if (!file.is_open()) {
    if (direct_ && errno == EINVAL) direct_ = false;
    file = Descriptor(::openat(directory_.number(), name.c_str(), flags));
  }
  if (!file.is_open()) return machine_refused("{}", std::strerror(errno));
  struct stat status {};
  if (!is_private_file(file.number(), status)) {
    return machine_refused("it is not a file of this user alone");
  }
  if (status.st_size != static_cast<off_t>(record_bytes(parts))) {
    return machine_refused("it has {} bytes, not {}", status.st_size, record_bytes(parts));
  }
  auto read = read_record(file.number(), record_secret_, key, parts);
  if (read) ::futimens(file.number(), nullptr);
  return read;
}

void FileTier::erase(const StoredKey& key) {
  const std::string name = name_of(key);
  {
    const MutexLock lock(mutex_);
    if (!remove(name)) return;
  }
  ::unlinkat(directory_.number(), name.c_str(), 0);
}

void FileTier::note_failure(const std::string& message, int error_number) {
  {
    const MutexLock lock(mutex_);
    const auto now = Clock::now();
    if (now < quiet_until_) return;
    quiet_until_ = now + kQuiet;
  }
  log_surely([&] {
    if (error_number == ENOSPC || error_number == EDQUOT) {
      spdlog::warn("{} (the disk is full)", message);
    } else {
      spdlog::warn(message);
    }
  });
}

FileTier::Statistics FileTier::statistics() const {
  const MutexLock lock(mutex_);
  return statistics_;
}

}  // namespace lockstep
