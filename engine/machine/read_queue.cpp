#include "engine/machine/read_queue.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// How often a submission that is refused for the moment is tried while nothing is in flight whose
// end could help.
constexpr int kSubmitTriesMax = 100;

// Errors of the moment: the same read may well succeed when a thread waits for it.
bool is_passing(int64_t error) {
  return error == -EINTR || error == -EAGAIN || error == -ENOBUFS || error == -ENOMEM ||
         error == -ECANCELED;
}

// Either the ring has no such request (an old kernel), or the file has no such reads: pread() will
// tell.
bool is_not_supported(int64_t error) {
  return error == -EINVAL || error == -EOPNOTSUPP;
}

}  // namespace

void ReadQueue::CloseRing::operator()(io_uring* ring) const {
  io_uring_queue_exit(ring);
  delete ring;
}

Result<std::unique_ptr<ReadQueue>> ReadQueue::make(
    std::span<const std::unique_ptr<DirectFile>> files, const ReadQueueRequest& request,
    DiskCalls& calls) {
  auto memory = calls.allocate({.bytes = request.buffer_count * request.buffer_bytes,
                                .what = "buffers to read the model through",
                                .node = request.node,
                                .workers = request.workers});
  if (!memory) return std::unexpected(memory.error());
  std::unique_ptr<ReadQueue> queue(new ReadQueue(files, calls));
  queue->memory_ = std::move(*memory);
  queue->buffer_bytes_ = request.buffer_bytes;
  queue->reads_.resize(request.buffer_count);
  // Nothing is allocated once reads are in flight.
  queue->pending_.reserve(request.buffer_count);
  queue->ended_.reserve(request.buffer_count);
  if (request.io_uring) queue->make_ring();
  return queue;
}

ReadQueue::~ReadQueue() {
  CHECK(in_flight_ == 0, "{} reads are in flight into buffers that go away", in_flight_);
}

void ReadQueue::make_ring() {
  auto ring = std::make_unique<io_uring>();
  ring_error_ = -std::min(0, calls_.make_ring(static_cast<unsigned>(reads_.size()), *ring));
  if (ring_error_ != 0) return;
  ring_.reset(ring.release());
  // Registered, the pages of a buffer are pinned once instead of at every read, and a file's count
  // of users is not touched. Either may be refused (the limit on locked memory); reads go without.
  std::vector<int> descriptors;
  for (const auto& file : files_) {
    descriptors.push_back(file->direct_descriptor());
    descriptors.push_back(file->reader().descriptor());
  }
  has_registered_files_ = calls_.register_files(*ring_, descriptors) >= 0;
  std::vector<iovec> buffers;
  for (size_t buffer = 0; buffer < reads_.size(); ++buffer) {
    buffers.push_back({address(buffer), buffer_bytes_});
  }
  has_registered_buffers_ = calls_.register_buffers(*ring_, buffers) >= 0;
}

void ReadQueue::start(size_t buffer, size_t file, uint64_t offset, size_t bytes, bool cached) {
  Read& read = reads_[buffer];
  read = {};
  read.file = file;
  read.cached = cached;
  read.range = files_[file]->blocks_around(offset, bytes);
  CHECK(read.range.length <= buffer_bytes_, "{} bytes for a buffer of {}", read.range.length,
        buffer_bytes_);
  if (has_ring() && !has_given_up_ && !cached) {
    prepare(buffer);
  } else {
    ended_.push_back(buffer);
  }
}

std::span<std::byte> ReadQueue::part_in_flight(const Read& read, size_t buffer) const {
  const size_t end = read.direct ? read.range.length : read.range.needed;
  return {address(buffer) + read.begun_at, end - read.begun_at};
}

void ReadQueue::prepare(size_t buffer) {
  Read& read = reads_[buffer];
  const DirectFile& file = *files_[read.file];
  read.direct = file.is_direct();
  // A direct read that was cut within a block begins again at that block. What it does not bring is
  // not there any more: the buffer is the kernel's until it ends.
  const size_t block = file.block_bytes();
  read.had = read.done;
  read.begun_at = read.direct ? read.done / block * block : read.done;
  read.done = read.begun_at;
  const std::span<std::byte> part = part_in_flight(read, buffer);
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
  CHECK(entry != nullptr, "the ring has fewer entries than there are {} buffers", reads_.size());
  const int descriptor = read.direct ? file.direct_descriptor() : file.reader().descriptor();
  const int place = static_cast<int>(2 * read.file + (read.direct ? 0 : 1));
  const int target = has_registered_files_ ? place : descriptor;
  const auto length = static_cast<unsigned>(part.size());
  const uint64_t offset = read.range.offset + read.begun_at;
  if (has_registered_buffers_) {
    io_uring_prep_read_fixed(entry, target, part.data(), length, offset, static_cast<int>(buffer));
  } else {
    io_uring_prep_read(entry, target, part.data(), length, offset);
  }
  unsigned flags = has_registered_files_ ? unsigned{IOSQE_FIXED_FILE} : 0U;
  // A read through the page cache would copy within submit(), one after the other: the kernel's
  // own threads do it.
  if (!read.direct) flags |= unsigned{IOSQE_ASYNC};
  io_uring_sqe_set_flags(entry, flags);
  entry->user_data = buffer;
  pending_.push_back(buffer);
}

void ReadQueue::submit() {
  int tries = 0;
  while (!pending_.empty()) {
    const int count = calls_.submit(*ring_);
    if (count > 0) {
      const auto taken = std::min(static_cast<size_t>(count), pending_.size());
      pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(taken));
      in_flight_ += taken;
      continue;
    }
    const bool passing = count == 0 || is_passing(count) || count == -EBUSY;
    if (passing && in_flight_ > 0) return;  // with the next end it is tried again
    if (!passing || ++tries >= kSubmitTriesMax) return give_up_ring();
  }
}

// The kernel takes no more. What it has will still end; what it has not is read by the thread
// that takes it. The ring is not touched again, for what was prepared still lies in it.
void ReadQueue::give_up_ring() {
  ended_.insert(ended_.end(), pending_.begin(), pending_.end());
  pending_.clear();
  has_given_up_ = true;
}

ReadQueue::Completion ReadQueue::wait() {
  io_uring_cqe* entry = nullptr;
  int failed = 0;
  do {
    failed = io_uring_wait_cqe(ring_.get(), &entry);
  } while (failed == -EINTR || failed == -EAGAIN);
  CHECK(failed == 0, "waiting for reads in flight failed: {}", std::strerror(-failed));
  const Completion completion = {static_cast<size_t>(entry->user_data), entry->res};
  io_uring_cqe_seen(ring_.get(), entry);
  return completion;
}

void ReadQueue::collect(const Completion& completion) {
  --in_flight_;
  Read& read = reads_[completion.buffer];
  const int64_t result = calls_.ended(read.range.offset + read.begun_at,
                                      part_in_flight(read, completion.buffer), completion.result);
  read.done = read.begun_at + static_cast<size_t>(std::max<int64_t>(result, 0));
  if (result < 0 && !is_passing(result) && !is_not_supported(result)) {
    read.error = static_cast<int>(-result);
  } else if (read.done > read.had && read.done < read.range.needed && !has_given_up_) {
    return prepare(completion.buffer);
  }
  ended_.push_back(completion.buffer);  // what is missing still, take() reads
}

std::optional<size_t> ReadQueue::next_ended() {
  if (ended_.empty()) return std::nullopt;
  const size_t buffer = ended_.front();
  ended_.erase(ended_.begin());
  return buffer;
}

Result<std::span<const std::byte>> ReadQueue::take(size_t buffer) {
  Read& read = reads_[buffer];
  DirectFile& file = *files_[read.file];
  if (read.error != 0) {
    return read_refused(file.reader(), read.range.offset + read.begun_at,
                        part_in_flight(read, buffer).size(), read.error);
  }
  if (auto filled = file.fill(read.range, address(buffer), read.done, read.cached); !filled) {
    return std::unexpected(filled.error());
  }
  return std::span<const std::byte>(address(buffer) + read.range.lead,
                                    read.range.needed - read.range.lead);
}

}  // namespace lockstep
