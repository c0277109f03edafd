#include "server/access/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/base/ascii.h"
#include "engine/base/json.h"
#include "engine/base/key_file.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr size_t kNameBytesMax = 64;
constexpr size_t kKeyBytesMin = 16;  // shorter ones can be guessed
constexpr uint64_t kAllowanceMax = 1'000'000'000'000;
constexpr int64_t kPriorityMax = 1'000'000;

std::optional<KeyDigest> parse_digest(std::string_view text) {
  KeyDigest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t index = 0; index < digest.size(); ++index) {
    const auto high = hex_digit(text[2 * index]);
    const auto low = hex_digit(text[2 * index + 1]);
    if (!high || !low) return std::nullopt;
    digest[index] = static_cast<uint8_t>(*high * 16 + *low);
  }
  return digest;
}

// Reads one row; the first thing that is wrong stays in error().
class RowReader {
 public:
  explicit RowReader(Json& row) : row_(row) {}

  KeyOwner read() {
    KeyOwner owner;
    if (!row_.is_object()) {
      refuse("is no object");
      return owner;
    }
    read_name(owner);
    read_digests(owner);
    owner.allowance.requests_per_minute = count("requests_per_minute");
    owner.allowance.tokens_per_minute = count("tokens_per_minute");
    owner.allowance.concurrent = count("concurrent");
    owner.allowance.priority =
        static_cast<int32_t>(integer("priority", -kPriorityMax, kPriorityMax));
    for (const auto& [name, value] : row_.items()) {
      if (!known_.contains(name)) refuse(fmt::format("has the unknown field \"{:.100}\"", name));
    }
    return owner;
  }

  const std::string& error() const { return error_; }

 private:
  void refuse(std::string what) {
    if (error_.empty()) error_ = std::move(what);
  }

  Json* field(const char* name) {
    known_.insert(name);
    const auto found = row_.find(name);
    return found == row_.end() || found->is_null() ? nullptr : &*found;
  }

  // Names go into the log and into headers.
  void read_name(KeyOwner& owner) {
    const Json* name = field("name");
    if (name != nullptr && name->is_string()) owner.name = name->get<std::string>();
    const bool plain = std::ranges::all_of(owner.name, [](char c) { return c > ' ' && c < 0x7f; });
    if (owner.name.empty() || owner.name.size() > kNameBytesMax || !plain) {
      refuse(fmt::format("needs a \"name\" of 1 to {} visible ASCII characters", kNameBytesMax));
    }
  }

  void read_digests(KeyOwner& owner) {
    Json* hashes = field("sha256");
    Json* key = field("key");
    if ((hashes == nullptr) == (key == nullptr)) {
      refuse("needs \"sha256\" or \"key\", one of them");
    } else if (key != nullptr) {
      read_plain_key(*key, owner);
    } else {
      const Json list = hashes->is_array() ? *hashes : Json::array({*hashes});
      for (const Json& hash : list) {
        const auto digest = parse_digest(hash.is_string() ? hash.get<std::string>() : "");
        if (digest) {
          owner.digests.push_back(*digest);
        } else {
          refuse("has a \"sha256\" that is not 64 hexadecimal digits");
        }
      }
      if (list.empty()) refuse("has a \"sha256\" without any hash");
    }
  }

  void read_plain_key(Json& key, KeyOwner& owner) {
    if (!key.is_string()) return refuse("has a \"key\" that is no string");
    auto& text = key.get_ref<std::string&>();
    owner.digests.push_back(digest_of(text));
    if (text.size() < kKeyBytesMin) {
      refuse(fmt::format("has a \"key\" of less than {} bytes", kKeyBytesMin));
    }
    OPENSSL_cleanse(text.data(), text.size());
  }

  int64_t integer(const char* name, int64_t minimum, int64_t maximum) {
    const Json* value = field(name);
    if (value == nullptr) return 0;
    if (!value->is_number_integer() || value->get<double>() < static_cast<double>(minimum) ||
        value->get<double>() > static_cast<double>(maximum)) {
      refuse(
          fmt::format("has a \"{}\" that is not an integer from {} to {}", name, minimum, maximum));
      return 0;
    }
    return value->get<int64_t>();
  }

  uint64_t count(const char* name) {
    return static_cast<uint64_t>(integer(name, 0, kAllowanceMax));
  }

  Json& row_;
  std::set<std::string, std::less<>> known_;
  std::string error_;
};

Result<std::string> read_text(const std::filesystem::path& file) {
  if (auto checked = check_key_file(file.string(), "--api-keys"); !checked) {
    return std::unexpected(std::move(checked.error()));
  }
  struct stat status {};
  if (stat(file.c_str(), &status) != 0) {
    return invalid_input("cannot read {} given as --api-keys", file.string());
  }
  if (static_cast<uint64_t>(status.st_size) > kFileBytesMax) {
    return invalid_input("{} is larger than {} bytes", file.string(), kFileBytesMax);
  }
  std::ifstream stream(file, std::ios::binary);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream) return invalid_input("cannot read {} given as --api-keys", file.string());
  return text;
}

}  // namespace

Result<ApiKeys> ApiKeys::load(const std::filesystem::path& file) {
  auto text = read_text(file);
  if (!text) return std::unexpected(std::move(text.error()));
  return parse(*text, file.string());
}

Result<ApiKeys> ApiKeys::parse(std::string& text, std::string_view origin) {
  auto document = parse_json(text, {.depth = 4, .values = 100'000, .comments = true});
  OPENSSL_cleanse(text.data(), text.size());
  if (!document) return invalid_input("the API keys in {}: {}", origin, document.error().message);
  if (!document->is_object() || document->size() != 1 || !document->contains("keys") ||
      !(*document)["keys"].is_array()) {
    return invalid_input("the API keys in {} are not {{\"keys\":[…]}}", origin);
  }
  ApiKeys keys;
  std::set<std::string> names;
  for (Json& row : (*document)["keys"]) {
    RowReader reader(row);
    KeyOwner owner = reader.read();
    if (!reader.error().empty()) {
      return invalid_input("the API keys in {}: row {} {}", origin, keys.owners_.size() + 1,
                           reader.error());
    }
    if (!names.insert(owner.name).second) {
      return invalid_input(
          "the API keys in {}: two rows have the name {}; give one row a list as "
          "\"sha256\"",
          origin, owner.name);
    }
    keys.owners_.push_back(std::move(owner));
  }
  return keys;
}

const KeyOwner* ApiKeys::find(std::string_view key) const {
  const KeyDigest presented = digest_of(key);
  const KeyOwner* found = nullptr;
  for (const KeyOwner& owner : owners_) {
    for (const KeyDigest& digest : owner.digests) {
      const bool same = CRYPTO_memcmp(presented.data(), digest.data(), digest.size()) == 0;
      found = same ? &owner : found;  // to the end in any case
    }
  }
  return found;
}

KeyDigest digest_of(std::string_view key) {
  KeyDigest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

std::string digest_text(const KeyDigest& digest) {
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace lockstep
