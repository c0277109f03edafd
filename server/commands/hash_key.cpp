// lockstepd hash-key: the row of an API key for the file of --api-keys. The key comes from standard
// input or is generated, never from the command line, which other users of the machine can read.
#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <array>
#include <iostream>
#include <string>

#include "server/access/api_keys.h"
#include "server/commands/command_line.h"
#include "server/commands/commands.h"

namespace lockstep {
namespace {

constexpr size_t kKeyBytesMin = 16;

std::string new_key() {
  std::array<uint8_t, 24> random{};
  if (RAND_bytes(random.data(), random.size()) != 1) return "";
  return fmt::format("sk-{:02x}", fmt::join(random, ""));
}

}  // namespace

int run_hash_key(const std::vector<std::string>& arguments) {
  CommandLine line("hash-key",
                   "Prints the row of an API key for the file of --api-keys: the key is read from "
                   "standard input, the file holds its SHA-256 alone.",
                   0);
  std::string name = "name";
  bool make = false;
  line.app().add_option("--name", name, "What the log calls the owner of the key");
  line.app().add_flag("--new", make, "Make up a key, print it to standard error, and read nothing");
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  std::string key;
  if (make) {
    key = new_key();
    std::cerr << key << '\n';
  } else {
    std::getline(std::cin, key);
    if (!key.empty() && key.back() == '\r') key.pop_back();
  }
  if (key.size() < kKeyBytesMin) {
    return report({ErrorKind::kInvalidInput,
                   fmt::format("the key on standard input has {} bytes; it needs {} or more, or "
                               "--new makes one up",
                               key.size(), kKeyBytesMin)});
  }
  std::cout << to_text({{"name", name}, {"sha256", digest_text(digest_of(key))}}) << '\n';
  OPENSSL_cleanse(key.data(), key.size());
  return 0;
}

}  // namespace lockstep
