// The memory of the answers that clients have not taken yet, and of those that they have.
#pragma once

#include <atomic>
#include <cstddef>

namespace lockstep {

// One for all connections of a gate. Any thread.
class AnswerMemory {
 public:
  void add(size_t bytes) noexcept { held_ += bytes; }
  void remove(size_t bytes) noexcept { held_ -= bytes; }
  size_t held() const noexcept { return held_; }

  // A text of so many bytes has been freed. glibc takes a large text from a free piece of an arena
  // where one is large enough, such as the values of a large body have left there, and keeps the
  // piece when it is free again, with the memory that the text has made it touch.
  void note_freed(size_t bytes) noexcept { freed_ += bytes; }
  // Gives freed memory back to the system once it is worth the milliseconds that this takes: not
  // on the gate's thread.
  void give_back() noexcept;

 private:
  std::atomic<size_t> held_ = 0;
  std::atomic<size_t> freed_ = 0;  // since memory was given back
};

}  // namespace lockstep
