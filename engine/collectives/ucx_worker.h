// A worker of UCX, which moves everything on that is on its way between this host and the others of
// its group: a look at one link helps all of them. In builds that have found UCX's header.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/result.h"
#include "engine/collectives/message_pieces.h"
#include "engine/collectives/ucx_library.h"

namespace lockstep {

// One thread at a time, whichever link it comes from.
class UcxWorker {
 public:
  // Its links share it: groups form anew and links end one by one, and it is there until the last
  // one has ended. Fails with kMachineRefused.
  static Result<std::shared_ptr<UcxWorker>> create(const UcxLibrary& ucx);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  // Other hosts' endpoints reach it by this.
  Result<std::vector<std::byte>> address() const;
  // Another one for each link, of 62 random bits: all messages come to the one worker, whose
  // address every host knows, and are told apart by it.
  static uint64_t new_link_number();

  // Does what there is to do without waiting; whether that was anything.
  bool progress();
  // Until there is something to do, but no longer than `most`.
  void sleep(std::chrono::nanoseconds most);

  // A link has ended and UCX has not let go of its memory: nothing moves from now on, and `pieces`
  // are kept.
  void abandon(std::unique_ptr<MessagePieces> pieces);
  bool is_abandoned() const { return is_abandoned_; }

 private:
  explicit UcxWorker(const UcxLibrary& ucx) : ucx_(ucx) {}
  Result<void> open();
  Result<void> check(ucs_status_t status) const;

  const UcxLibrary& ucx_;
  std::vector<std::unique_ptr<MessagePieces>> kept_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  bool is_abandoned_ = false;
};

}  // namespace lockstep
