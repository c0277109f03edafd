// The API keys of a file. Only their SHA-256 is held; what a client presents is hashed and compared
// with every key in constant time, so that neither the time nor a dump of memory tells about them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace lockstep {

using KeyDigest = std::array<uint8_t, 32>;  // SHA-256

// The allowance of a key's owner; 0: any amount.
struct KeyAllowance {
  uint64_t requests_per_minute = 0;
  uint64_t tokens_per_minute = 0;  // of prompts, answers, and what is only prepared
  uint64_t concurrent = 0;         // requests at once
  int32_t priority = 0;            // the most urgent that its requests may have; lower goes first
};

// One row of the file: whom its keys stand for. Several keys, so that an old one can go on while a
// new one is handed out.
struct KeyOwner {
  std::string name;
  std::vector<KeyDigest> digests;
  KeyAllowance allowance;
};

// Immutable.
class ApiKeys {
 public:
  // Reads {"keys":[{"name":"alice","sha256":"…" or ["…","…"],"requests_per_minute":60,
  // "tokens_per_minute":10000,"concurrent":4,"priority":0},…]}; a row may hold "key", the key
  // itself, instead of its hash. Comments are allowed. Fails with kInvalidInput that names the
  // file, the row and what is wrong with it. Warns of a file that others may read.
  static Result<ApiKeys> load(const std::filesystem::path& file);
  // The same from text, whose keys it wipes; `origin` names it in errors.
  static Result<ApiKeys> parse(std::string& text, std::string_view origin);

  // The owner of a key, or null. Takes the same time for every key of one length.
  const KeyOwner* find(std::string_view key) const;
  const std::vector<KeyOwner>& owners() const { return owners_; }

 private:
  std::vector<KeyOwner> owners_;
};

KeyDigest digest_of(std::string_view key);
// In hexadecimal digits.
std::string digest_text(const KeyDigest& digest);

}  // namespace lockstep
