#include "engine/machine/file_speed.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "engine/machine/direct_file.h"
#include "engine/machine/read_queue.h"

namespace lockstep {
namespace {

constexpr size_t kReadBytes = 4U << 20U;
constexpr size_t kReadsInFlight = 16;

// The ranges of the file in order, each read once.
class Reading {
 public:
  Reading(const DirectFile& file, ReadQueue& queue, double seconds)
      : size_bytes_(file.reader().size_bytes()), queue_(queue), seconds_(seconds) {}

  Result<void> run() {
    for (size_t buffer = 0; buffer < queue_.buffer_count(); ++buffer) start(buffer);
    queue_.submit();
    Result<void> result;
    while (under_way_ > 0) {
      while (const auto ended = queue_.next_ended()) {
        --under_way_;
        const auto bytes = queue_.take(*ended);
        if (bytes) {
          bytes_ += bytes->size();
        } else if (result) {
          result = std::unexpected(bytes.error());
        }
        if (result) start(*ended);
      }
      queue_.submit();
      if (queue_.in_flight() > 0) queue_.collect(queue_.wait());
    }
    return result;
  }

  uint64_t bytes() const { return bytes_; }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  void start(size_t buffer) {
    if (offset_ == size_bytes_ || (offset_ > 0 && seconds() >= seconds_)) return;
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kReadBytes, size_bytes_ - offset_));
    queue_.start(buffer, 0, offset_, bytes);
    offset_ += bytes;
    ++under_way_;
  }

  uint64_t size_bytes_;
  ReadQueue& queue_;
  double seconds_;
  uint64_t offset_ = 0;   // of the next range
  uint64_t bytes_ = 0;    // read
  size_t under_way_ = 0;  // started and not yet taken
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

Result<FileSpeed> measure_file_read(const std::filesystem::path& path, double seconds) {
  const auto reader = FileReader::open(path);
  if (!reader) return std::unexpected(reader.error());
  DiskCalls calls;
  std::vector<std::unique_ptr<DirectFile>> files;
  files.push_back(std::make_unique<DirectFile>(*reader, true, calls));
  const size_t buffer_bytes = kReadBytes + 2 * files.front()->block_bytes();
  auto queue =
      ReadQueue::make(files, {.buffer_count = kReadsInFlight, .buffer_bytes = buffer_bytes}, calls);
  if (!queue) return std::unexpected(queue.error());
  Reading reading(*files.front(), **queue, seconds);
  if (auto done = reading.run(); !done) return std::unexpected(done.error());
  FileSpeed speed{
      .bytes = reading.bytes(), .seconds = reading.seconds(), .direct = files.front()->is_direct()};
  files.front()->drop_rest();
  return speed;
}

}  // namespace lockstep
