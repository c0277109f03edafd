#include "server/api/common/conversations.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "engine/base/ascii.h"
#include "engine/base/descriptor.h"
#include "engine/base/digest.h"
#include "server/api/common/random.h"

namespace lockstep {
namespace {

constexpr std::string_view kMagic = "LSCONV01";
constexpr size_t kDigestBytes = 64;
// No conversation has more bytes: a context of 16 million tokens.
constexpr off_t kFileBytesMost = off_t{64} << 20;
constexpr std::string_view kTemporaryBegin = ".new-";

std::string text_digest(std::string_view text) {
  Digest digest;
  digest.add(text);
  return digest.finish();
}

// A file's name and nothing else: no folder, no hidden file.
bool is_name(std::string_view name) {
  constexpr std::string_view kOthers = "._-";
  const auto is_fine = [&](char byte) {
    const bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    return is_letter || is_ascii_digit(byte) || kOthers.find(byte) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= Conversations::kNameBytesMax && name.front() != '.' &&
         std::ranges::all_of(name, is_fine);
}

Result<void> check_name(std::string_view name) {
  if (is_name(name)) return {};
  return invalid_input(
      "'filename': must be 1 to {} letters, digits, '-', '_' and '.', the first no '.'; not "
      "\"{:.140}\"",
      Conversations::kNameBytesMax, name);
}

std::unexpected<Error> file_error(std::string_view action, std::string_view name, int number) {
  return machine_refused("the conversation \"{}\" cannot be {}: {}", name, action,
                         std::strerror(number));
}

void append_number(std::string& text, size_t number) {
  const auto value = static_cast<uint32_t>(number);
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& text, std::string_view part) {
  append_number(text, part.size());
  text += part;
}

// Takes from the front of a text; none where it ends before that.
std::optional<uint32_t> take_number(std::string_view& text) {
  uint32_t value = 0;
  if (text.size() < sizeof value) return std::nullopt;
  std::memcpy(&value, text.data(), sizeof value);
  text.remove_prefix(sizeof value);
  return value;
}

std::optional<std::string_view> take_text(std::string_view& text) {
  const auto bytes = take_number(text);
  if (!bytes || text.size() < *bytes) return std::nullopt;
  const std::string_view part = text.substr(0, *bytes);
  text.remove_prefix(*bytes);
  return part;
}

// Writes a new file, durably; 0, or the number of the error.
int write_file(const std::filesystem::path& path, std::string_view bytes) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                               S_IRUSR | S_IWUSR));
  if (!file.is_open()) return errno;
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.number(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return EIO;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return ::fsync(file.number()) == 0 ? 0 : errno;
}

// Makes the names in a folder durable; 0, or the number of the error.
int sync_folder(const std::filesystem::path& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open() || ::fsync(folder.number()) != 0) return errno;
  return 0;
}

Result<std::string> read_file(const std::filesystem::path& path, std::string_view name) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open() && (errno == ENOENT || errno == ELOOP)) {
    return invalid_input("there is no saved conversation \"{}\"", name);
  }
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0) {
    return file_error("read", name, errno);
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || status.st_size > kFileBytesMost) {
    return invalid_input("the saved conversation \"{}\" is no file that this server has written",
                         name);
  }
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t read = ::read(file.number(), bytes.data() + done, bytes.size() - done);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return file_error("read", name, errno);
    if (read == 0) break;  // it has become shorter: its digest tells
    done += static_cast<size_t>(read);
  }
  return bytes;
}

std::unexpected<Error> damaged_file() {
  return invalid_input("is damaged");
}

}  // namespace

std::string conversation_bytes(const Conversation& conversation, std::string_view model) {
  std::string bytes(kMagic);
  append_text(bytes, model);
  append_text(bytes, conversation.cache_salt);
  append_number(bytes, conversation.tokens.size());
  bytes.append(reinterpret_cast<const char*>(conversation.tokens.data()),
               conversation.tokens.size() * sizeof(TokenId));
  return bytes + text_digest(bytes);
}

Result<Conversation> parse_conversation(std::string_view bytes, std::string_view model) {
  if (bytes.size() < kMagic.size() + kDigestBytes || !bytes.starts_with(kMagic)) {
    return damaged_file();
  }
  const std::string_view digest = bytes.substr(bytes.size() - kDigestBytes);
  bytes.remove_suffix(kDigestBytes);
  if (text_digest(bytes) != digest) return damaged_file();
  bytes.remove_prefix(kMagic.size());
  const auto other = take_text(bytes);
  if (!other) return damaged_file();
  if (*other != model) {
    return invalid_input("is of the model \"{:.200}\", not of \"{:.200}\"", *other, model);
  }
  const auto salt = take_text(bytes);
  if (!salt) return damaged_file();
  const auto count = take_number(bytes);
  if (!count || *count == 0 || bytes.size() != size_t{*count} * sizeof(TokenId)) {
    return damaged_file();
  }
  Conversation conversation;
  conversation.cache_salt = *salt;
  conversation.tokens.resize(*count);
  std::memcpy(conversation.tokens.data(), bytes.data(), bytes.size());
  return conversation;
}

Conversations::Conversations(Settings settings)
    : settings_(std::move(settings)), temporary_begin_(random_id(kTemporaryBegin) + "-") {}

void Conversations::begin(const std::string& owner, uint32_t slot) {
  const MutexLock lock(mutex_);
  ++slots_[{owner, slot}].running;
}

void Conversations::end(const std::string& owner, uint32_t slot,
                        Conversation* conversation) noexcept {
  const MutexLock lock(mutex_);
  const auto found = slots_.find(Order::Key(owner, slot));
  if (found == slots_.end()) return;
  --found->second.running;
  if (conversation != nullptr) {
    tokens_ -= found->second.last.tokens.size();
    tokens_ += conversation->tokens.size();
    std::swap(found->second.last, *conversation);
    found->second.ended = ++ends_;
  }
  remove_if_unused(found);
  if (conversation == nullptr) return;
  const auto begin = slots_.lower_bound(Order::Key(owner, 0));
  auto end = begin;
  size_t tokens = 0;
  for (; end != slots_.end() && end->first.first == owner; ++end) {
    tokens += end->second.last.tokens.size();
  }
  drop_oldest(begin, end, tokens, settings_.owner_tokens_most);
  drop_oldest(slots_.begin(), slots_.end(), tokens_, settings_.tokens_most);
}

// Drops conversations of a range that has `tokens` until it has no more than `tokens_most`.
void Conversations::drop_oldest(Slots::iterator begin, Slots::iterator end, size_t tokens,
                                size_t tokens_most) {
  while (tokens > tokens_most) {
    auto oldest = end;
    for (auto slot = begin; slot != end; ++slot) {
      if (slot->second.last.tokens.empty()) continue;
      if (oldest == end || slot->second.ended < oldest->second.ended) oldest = slot;
    }
    if (oldest == begin && oldest->second.running == 0) ++begin;  // drop() removes it
    tokens -= drop(oldest);
  }
}

// The number of tokens that it has had; a slot that does not run is gone then.
size_t Conversations::drop(Slots::iterator slot) {
  const size_t tokens = std::exchange(slot->second.last, {}).tokens.size();
  tokens_ -= tokens;
  remove_if_unused(slot);
  return tokens;
}

void Conversations::remove_if_unused(Slots::iterator slot) {
  if (slot->second.running == 0 && slot->second.last.tokens.empty()) slots_.erase(slot);
}

Conversation Conversations::find(const std::string& owner, uint32_t slot) const {
  const MutexLock lock(mutex_);
  const auto found = slots_.find(Order::Key(owner, slot));
  return found == slots_.end() ? Conversation() : found->second.last;
}

Conversations::Use Conversations::use(const std::string& owner, uint32_t slot) const {
  const MutexLock lock(mutex_);
  const auto found = slots_.find(Order::Key(owner, slot));
  if (found == slots_.end()) return {};
  return {found->second.last.tokens.size(), found->second.running};
}

size_t Conversations::erase(const std::string& owner, uint32_t slot) {
  const MutexLock lock(mutex_);
  const auto found = slots_.find(Order::Key(owner, slot));
  return found == slots_.end() ? 0 : drop(found);
}

size_t Conversations::used_slots() const {
  const MutexLock lock(mutex_);
  return slots_.size();
}

// An owner's name may be anything.
std::filesystem::path Conversations::folder(const std::string& owner) const {
  return settings_.directory / "slots" / text_digest(owner);
}

// Makes the folder; fails where it has kFilesMost files of other names. Removes what saves that a
// process has not survived have left.
Result<void> Conversations::make_folder(const std::filesystem::path& folder,
                                        std::string_view name) const {
  for (const std::filesystem::path& made : {folder.parent_path(), folder}) {
    if (::mkdir(made.c_str(), S_IRWXU) == 0) {
      if (const int number = sync_folder(made.parent_path()); number != 0) {
        return file_error("saved", name, number);
      }
    } else if (errno != EEXIST) {
      return file_error("saved", name, errno);
    }
  }
  std::error_code error;
  size_t count = 0;
  std::vector<std::filesystem::path> stale;
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    const std::string other = file->path().filename().string();
    if (other.starts_with(kTemporaryBegin)) {
      if (!other.starts_with(temporary_begin_)) stale.push_back(file->path());
    } else if (other != name) {
      ++count;
    }
  }
  if (error) return file_error("saved", name, error.value());
  for (const std::filesystem::path& file : stale) ::unlink(file.c_str());
  if (count < kFilesMost) return {};
  return invalid_input("there are {} saved conversations, and there may be {}: erase some", count,
                       kFilesMost);
}

Result<Conversations::SavePlace> Conversations::take_save_place() const {
  if (saves_.fetch_add(1) < kSavesMost) return SavePlace(saves_);
  saves_.fetch_sub(1);
  Error error{ErrorKind::kUnavailable,
              fmt::format("{} conversations are being saved, which is the most at once: try again "
                          "soon",
                          kSavesMost)};
  error.retry_after_seconds = 1;
  return std::unexpected(std::move(error));
}

Result<uint64_t> Conversations::save(const SavePlace&, const std::string& owner,
                                     std::string_view name,
                                     const Conversation& conversation) const {
  if (auto checked = check_name(name); !checked) return std::unexpected(checked.error());
  const std::filesystem::path own = folder(owner);
  if (auto made = make_folder(own, name); !made) return std::unexpected(made.error());
  const std::string bytes = conversation_bytes(conversation, settings_.model);
  const std::filesystem::path temporary =
      own / fmt::format("{}{}", temporary_begin_, next_temporary_++);
  int number = write_file(temporary, bytes);
  if (number == 0 && ::rename(temporary.c_str(), (own / name).c_str()) != 0) number = errno;
  if (number != 0) {
    ::unlink(temporary.c_str());
    return file_error("saved", name, number);
  }
  if (number = sync_folder(own); number != 0) return file_error("saved", name, number);
  return bytes.size();
}

Result<Conversations::Loaded> Conversations::load(const std::string& owner,
                                                  std::string_view name) const {
  if (auto checked = check_name(name); !checked) return std::unexpected(checked.error());
  const auto bytes = read_file(folder(owner) / name, name);
  if (!bytes) return std::unexpected(bytes.error());
  auto conversation = parse_conversation(*bytes, settings_.model);
  if (conversation) return Loaded{std::move(*conversation), bytes->size()};
  return invalid_input("the saved conversation \"{}\" {}", name, conversation.error().message);
}

Result<void> Conversations::remove(const std::string& owner, std::string_view name) const {
  if (auto checked = check_name(name); !checked) return checked;
  if (::unlink((folder(owner) / name).c_str()) == 0 || errno == ENOENT) return {};
  return file_error("erased", name, errno);
}

}  // namespace lockstep
