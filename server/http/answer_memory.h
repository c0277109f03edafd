// The memory of the answers that clients have not taken yet, and of those that they have.
#pragma once

#include <atomic>
#include <cstddef>

namespace lockstep {

// Gives freed memory back to the system where so much has been freed that it is worth the
// milliseconds that this takes. Any thread.
void give_back_memory(size_t freed_bytes) noexcept;

// One for all connections of a gate. Any thread.
class AnswerMemory {
 public:
  void add(size_t bytes) noexcept { held_ += bytes; }
  void remove(size_t bytes) noexcept { held_ -= bytes; }
  size_t held() const noexcept { return held_; }

  // A text of so many bytes has been freed. glibc takes a large text from a free piece of an arena
  // where one is large enough, such as the values of a large body have left there, and keeps the
  // piece when it is free again, with the memory that the text has made it touch.
  // Small texts, of which a stream has one for each token, are not counted.
  void note_freed(size_t bytes) noexcept {
    if (bytes >= kLargeTextBytes) freed_ += bytes;
  }
  // As give_back_memory(): not on the gate's thread.
  void give_back() noexcept;

 private:
  static constexpr size_t kLargeTextBytes = 64 * 1024;

  std::atomic<size_t> held_ = 0;
  std::atomic<size_t> freed_ = 0;  // since memory was given back
};

}  // namespace lockstep
