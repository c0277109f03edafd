// SHA-256, by which what was kept is known again.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);

  // The digest of all that was added: 64 hexadecimal digits. Called once, after the last add().
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
