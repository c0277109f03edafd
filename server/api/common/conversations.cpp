#include "server/api/common/conversations.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "engine/base/ascii.h"
#include "engine/base/descriptor.h"
#include "engine/base/digest.h"

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

// All of it, durably.
bool write_file(const std::filesystem::path& path, std::string_view bytes) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                               S_IRUSR | S_IWUSR));
  if (!file.is_open()) return false;
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.number(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return ::fsync(file.number()) == 0;
}

// None where it cannot be read, is no file of this user, or is too large.
std::optional<std::string> read_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) return std::nullopt;
  if (status.st_size > kFileBytesMost) return std::nullopt;
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t read = ::read(file.number(), bytes.data() + done, bytes.size() - done);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return std::nullopt;
    done += static_cast<size_t>(read);
  }
  return bytes;
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

std::optional<Conversation> parse_conversation(std::string_view bytes, std::string_view model) {
  if (bytes.size() < kMagic.size() + kDigestBytes || !bytes.starts_with(kMagic)) {
    return std::nullopt;
  }
  const std::string_view digest = bytes.substr(bytes.size() - kDigestBytes);
  bytes.remove_suffix(kDigestBytes);
  if (text_digest(bytes) != digest) return std::nullopt;
  bytes.remove_prefix(kMagic.size());
  const auto of_model = take_text(bytes);
  if (!of_model || *of_model != model) return std::nullopt;
  const auto salt = take_text(bytes);
  if (!salt) return std::nullopt;
  const auto count = take_number(bytes);
  if (!count || bytes.size() != size_t{*count} * sizeof(TokenId)) return std::nullopt;
  Conversation conversation;
  conversation.cache_salt = *salt;
  conversation.tokens.resize(*count);
  if (*count > 0) std::memcpy(conversation.tokens.data(), bytes.data(), bytes.size());
  return conversation;
}

void Conversations::begin(const std::string& owner, uint32_t slot) {
  const MutexLock lock(mutex_);
  ++slots_[{owner, slot}].running;
}

void Conversations::end(const std::string& owner, uint32_t slot,
                        Conversation&& conversation) noexcept {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(slots_, [&](const auto& entry) {
    return entry.first.second == slot && entry.first.first == owner;
  });
  if (found == slots_.end()) return;
  --found->second.running;
  std::swap(found->second.last, conversation);
}

Conversation Conversations::find(const std::string& owner, uint32_t slot) const {
  const MutexLock lock(mutex_);
  const auto found = slots_.find({owner, slot});
  return found == slots_.end() ? Conversation() : found->second.last;
}

Conversations::Use Conversations::use(const std::string& owner, uint32_t slot) const {
  const MutexLock lock(mutex_);
  const auto found = slots_.find({owner, slot});
  if (found == slots_.end()) return {};
  return {found->second.last.tokens.size(), found->second.running};
}

size_t Conversations::erase(const std::string& owner, uint32_t slot) {
  const MutexLock lock(mutex_);
  const auto found = slots_.find({owner, slot});
  if (found == slots_.end()) return 0;
  return std::exchange(found->second.last, {}).tokens.size();
}

// An owner's name may be anything.
std::filesystem::path Conversations::folder(const std::string& owner) const {
  return settings_.directory / "slots" / text_digest(owner);
}

// And there is a place in it for a file of this name.
Result<void> Conversations::make_folder(const std::filesystem::path& folder,
                                        std::string_view name) const {
  for (const std::filesystem::path& made : {folder.parent_path(), folder}) {
    if (::mkdir(made.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      return file_error("saved", name, errno);
    }
  }
  std::error_code error;
  size_t count = 0;
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    const std::string other = file->path().filename().string();
    if (other == name) return {};
    if (!other.starts_with(kTemporaryBegin)) ++count;
  }
  if (error) return file_error("saved", name, error.value());
  if (count < kFilesMost) return {};
  return invalid_input("there are {} saved conversations, and there may be no more: erase some",
                       count);
}

Result<uint64_t> Conversations::save(const std::string& owner, std::string_view name,
                                     const Conversation& conversation) const {
  if (auto checked = check_name(name); !checked) return std::unexpected(checked.error());
  const std::filesystem::path own = folder(owner);
  if (auto made = make_folder(own, name); !made) return std::unexpected(made.error());
  const std::string bytes = conversation_bytes(conversation, settings_.model);
  const std::filesystem::path temporary =
      own / fmt::format("{}{}", kTemporaryBegin, next_temporary_++);
  if (!write_file(temporary, bytes) || ::rename(temporary.c_str(), (own / name).c_str()) != 0) {
    const int number = errno;
    ::unlink(temporary.c_str());
    return file_error("saved", name, number);
  }
  return bytes.size();
}

Result<Conversations::Loaded> Conversations::load(const std::string& owner,
                                                  std::string_view name) const {
  if (auto checked = check_name(name); !checked) return std::unexpected(checked.error());
  const auto bytes = read_file(folder(owner) / name);
  auto conversation = bytes ? parse_conversation(*bytes, settings_.model) : std::nullopt;
  if (conversation && !conversation->tokens.empty()) {
    return Loaded{std::move(*conversation), bytes->size()};
  }
  return invalid_input("there is no saved conversation \"{}\" of this model, or it is damaged",
                       name);
}

Result<void> Conversations::remove(const std::string& owner, std::string_view name) const {
  if (auto checked = check_name(name); !checked) return checked;
  if (::unlink((folder(owner) / name).c_str()) == 0 || errno == ENOENT) return {};
  return file_error("erased", name, errno);
}

}  // namespace lockstep
