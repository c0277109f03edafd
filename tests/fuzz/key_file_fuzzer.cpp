// Any bytes as a file of API keys. What is taken must be sound, what is refused must say why
// without a key in it, and the text with its keys is wiped in any case.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "engine/base/check.h"
#include "server/access/api_keys.h"

namespace lockstep {
namespace {

constexpr uint64_t kAllowanceMax = 1'000'000'000'000;
constexpr size_t kMessageBytesMax = 1000;

void check_owner(const KeyOwner& owner) {
  const bool plain = std::ranges::all_of(owner.name, [](char c) { return c > ' ' && c < 0x7f; });
  CHECK(!owner.name.empty() && plain, "the name '{}'", owner.name);
  CHECK(!owner.digests.empty(), "{} has no key", owner.name);
  const KeyAllowance& allowance = owner.allowance;
  for (const uint64_t each :
       {allowance.requests_per_minute, allowance.tokens_per_minute, allowance.concurrent}) {
    CHECK(each <= kAllowanceMax, "an allowance of {}", each);
  }
  CHECK(std::abs(allowance.priority) <= 1'000'000, "a priority of {}", allowance.priority);
}

void read_keys(std::string text) {
  const std::string given = text;
  const auto keys = ApiKeys::parse(text, "keys.json");
  CHECK(std::ranges::all_of(text, [](char c) { return c == 0; }), "the text is still there");
  if (!keys) {
    const Error& error = keys.error();
    CHECK(error.kind == ErrorKind::kInvalidInput, "{}", error.message);
    CHECK(error.message.find("keys.json") != std::string::npos, "{}", error.message);
    CHECK(error.message.size() <= kMessageBytesMax, "{} bytes", error.message.size());
    return;
  }
  std::set<std::string> names;
  for (const KeyOwner& owner : keys->owners()) {
    check_owner(owner);
    CHECK(names.insert(owner.name).second, "{} is there twice", owner.name);
  }
  const KeyOwner* const found = keys->find(given);  // the file is no key of itself
  CHECK(found == nullptr, "found {}", found->name);
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::read_keys(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
