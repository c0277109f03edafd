#include "engine/collectives/message_pieces.h"

#include <algorithm>

#include "engine/base/check.h"

namespace lockstep {

MessagePieces::MessagePieces(MessagePort& port, BytePieces& words)
    : port_(port), words_(words), incoming_(kMessageBytes) {
  for (Slot& slot : slots_) slot.memory.resize(kMessageBytes);
}

Result<size_t> MessagePieces::send_some(std::span<const std::byte> out) {
  size_t sent = 0;
  while (on_their_way_ > 0) {
    const auto has_sent = port_.has_sent(first_);
    if (!has_sent) return std::unexpected(has_sent.error());
    if (!*has_sent) break;
    sent += slots_[first_].bytes;
    bytes_on_their_way_ -= slots_[first_].bytes;
    first_ = (first_ + 1) % kSlots;
    --on_their_way_;
  }
  CHECK(out.size() >= sent + bytes_on_their_way_, "what is on its way is not the rest's beginning");
  auto rest = out.subspan(sent + bytes_on_their_way_);
  while (!rest.empty() && on_their_way_ < kSlots) {
    const size_t index = (first_ + on_their_way_) % kSlots;
    Slot& slot = slots_[index];
    slot.bytes = std::min(rest.size(), slot.memory.size());
    std::ranges::copy(rest.first(slot.bytes), slot.memory.begin());
    if (auto begun = port_.begin_send(index, std::span(slot.memory).first(slot.bytes)); !begun) {
      return std::unexpected(begun.error());
    }
    ++on_their_way_;
    bytes_on_their_way_ += slot.bytes;
    rest = rest.subspan(slot.bytes);
  }
  return sent;
}

Result<size_t> MessagePieces::receive_some(std::span<std::byte> in) {
  size_t received = 0;
  while (received < in.size()) {
    if (taken_ == came_) {
      const auto next = port_.receive(incoming_);
      if (!next) return std::unexpected(next.error());
      // A host that sends messages without bytes does not keep the caller here.
      if (!*next || **next == 0) break;
      came_ = **next;
      taken_ = 0;
    }
    const auto piece = std::span<const std::byte>(incoming_).subspan(
        taken_, std::min(in.size() - received, came_ - taken_));
    std::ranges::copy(piece, in.begin() + static_cast<std::ptrdiff_t>(received));
    taken_ += piece.size();
    received += piece.size();
  }
  return received;
}

Result<bool> MessagePieces::settle() {
  CHECK(on_their_way_ == 0, "{} messages have not gone", on_their_way_);
  if (taken_ < came_) {
    return machine_refused("{} bytes more came than the pass has: the hosts' plans differ",
                           came_ - taken_);
  }
  // A host that has heard the word may have gone: where both words are there nothing is missing.
  const auto moved = port_.progress();
  std::byte word = {};
  if (!has_said_) {
    const auto sent = words_.send_some(std::span(&word, 1));
    if (!sent) return std::unexpected(sent.error());
    has_said_ = *sent > 0;
  }
  if (!has_heard_) {
    const auto heard = words_.receive_some(std::span(&word, 1));
    if (!heard) return std::unexpected(heard.error());
    has_heard_ = *heard > 0;
  }
  if (!has_said_ || !has_heard_) {
    if (!moved) return std::unexpected(moved.error());
    return false;
  }
  has_said_ = has_heard_ = false;
  return true;
}

}  // namespace lockstep
