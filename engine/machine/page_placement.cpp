#include "engine/machine/page_placement.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <expected>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/machine/arena_rules.h"
#include "engine/machine/memory_calls.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

// A mapping of this process, as /proc/self/smaps has it.
struct Mapping {
  uintptr_t start = 0;
  uintptr_t end = 0;
  size_t page_bytes = kSmallPageBytes;
  uint64_t resident_bytes = 0;     // pages of the pools are not counted
  uint64_t transparent_bytes = 0;  // in transparent huge pages

  bool is_hugetlb() const { return page_bytes > kSmallPageBytes; }
};

template <typename T>
bool parse(std::string_view text, int base, T& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return result.ec == std::errc();
}

// "7f00-7f80 rw-p 00000000 00:00 0": the first line of a mapping.
bool parse_first_line(std::string_view line, Mapping& mapping) {
  const size_t dash = line.find('-');
  if (dash == std::string_view::npos || dash > 2 * sizeof(uintptr_t)) return false;
  return parse(line.substr(0, dash), 16, mapping.start) &&
         parse(line.substr(dash + 1), 16, mapping.end);
}

// The value of "AnonHugePages:      2048 kB".
std::optional<uint64_t> bytes_of(std::string_view line, std::string_view key) {
  if (!line.starts_with(key)) return std::nullopt;
  line.remove_prefix(key.size());
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  uint64_t kibibytes = 0;
  if (!parse(line, 10, kibibytes)) return std::nullopt;
  return kibibytes * 1024;
}

// Those that `memory` lies in, in order of address. None where the file cannot be read.
std::optional<std::vector<Mapping>> read_mappings(std::span<const std::byte> memory) {
  std::ifstream file("/proc/self/smaps");
  if (!file) return std::nullopt;
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  std::vector<Mapping> mappings;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    Mapping mapping;
    if (parse_first_line(line, mapping)) {
      if (mapping.start >= start + memory.size()) break;
      inside = mapping.end > start;
      if (inside) mappings.push_back(mapping);
      continue;
    }
    if (!inside) continue;
    Mapping& current = mappings.back();
    if (const auto page = bytes_of(line, "KernelPageSize:")) current.page_bytes = *page;
    if (const auto resident = bytes_of(line, "Rss:")) current.resident_bytes = *resident;
    for (const auto key : {"AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"}) {
      current.transparent_bytes += bytes_of(line, key).value_or(0);
    }
  }
  if (file.bad()) return std::nullopt;
  return mappings;
}

// Asks for pages in batches: a call per page would cost far more than the answers.
class PageQuery {
 public:
  PageQuery(MemoryCalls& calls, int node) : calls_(calls), node_(node) {}

  // One page, of which `bytes` count. Returns 0 or an error number.
  int add(uintptr_t page, size_t bytes) {
    pages_.push_back(reinterpret_cast<void*>(page));
    bytes_.push_back(bytes);
    return pages_.size() == kBatch ? flush() : 0;
  }

  int flush() {
    status_.assign(pages_.size(), -ENOENT);
    if (!pages_.empty() && calls_.query_pages(pages_.data(), pages_.size(), status_.data()) < 0) {
      return errno;
    }
    for (size_t i = 0; i < pages_.size(); ++i) {
      if (status_[i] < 0) {
        placement_.absent_bytes += bytes_[i];
        continue;
      }
      placement_.bytes_on_node[status_[i]] += bytes_[i];
      if (node_ >= 0 && status_[i] != node_) placement_.wrong_bytes += bytes_[i];
    }
    pages_.clear();
    bytes_.clear();
    return 0;
  }

  const Placement& placement() const { return placement_; }

 private:
  static constexpr size_t kBatch = 8192;

  MemoryCalls& calls_;
  int node_;
  std::vector<void*> pages_;
  std::vector<size_t> bytes_;
  std::vector<int> status_;
  Placement placement_;
};

// How far apart the pages of [start, end) are that have to be asked for: a mapping that is huge
// throughout needs one question per huge page.
size_t step_bytes(const std::vector<Mapping>& mappings, uintptr_t at) {
  for (const Mapping& mapping : mappings) {
    if (at < mapping.start || at >= mapping.end) continue;
    if (mapping.is_hugetlb()) return mapping.page_bytes;
    const bool all_huge = mapping.transparent_bytes == mapping.end - mapping.start;
    return all_huge ? kHugePageBytes : kSmallPageBytes;
  }
  return kSmallPageBytes;
}

// Whether `memory` is these mappings, from the first byte of the first to the last of the last.
bool is_whole(const std::vector<Mapping>& mappings, std::span<const std::byte> memory) {
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  uintptr_t at = start;
  for (const Mapping& mapping : mappings) {
    if (mapping.start != at) return false;
    at = mapping.end;
  }
  return at == start + memory.size();
}

// "7f00 bind:1 anon=512 dirty=512 N0=12 N1=500 kernelpagesize_kB=4": adds the pages of one mapping.
void add_pages_of_nodes(std::istringstream& words, Placement& placement) {
  std::map<int, uint64_t> pages;
  uint64_t page_bytes = kSmallPageBytes;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    uint64_t number = 0;
    if (equals == std::string::npos) continue;
    if (!parse(std::string_view(word).substr(equals + 1), 10, number)) continue;
    int node = 0;
    if (word.starts_with("kernelpagesize_kB=")) {
      page_bytes = number * 1024;
    } else if (word[0] == 'N' && parse(std::string_view(word).substr(1), 10, node)) {
      pages[node] += number;
    }
  }
  for (const auto& [node, count] : pages) placement.bytes_on_node[node] += count * page_bytes;
}

// From /proc/self/numa_maps, which needs no permission but knows only whole mappings. None where
// `memory` is no such, or there is no such file.
std::optional<Placement> placement_of_mappings(const std::vector<Mapping>& mappings,
                                               std::span<const std::byte> memory, int node) {
  std::ifstream file("/proc/self/numa_maps");
  if (!file || mappings.empty() || !is_whole(mappings, memory)) return std::nullopt;
  Placement placement;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    uintptr_t start = 0;
    if (!(words >> std::hex >> start)) continue;
    if (std::ranges::find(mappings, start, &Mapping::start) == mappings.end()) continue;
    add_pages_of_nodes(words, placement);
  }
  uint64_t present = 0;
  for (const auto& [on, bytes] : placement.bytes_on_node) {
    present += bytes;
    if (node >= 0 && on != node) placement.wrong_bytes += bytes;
  }
  placement.absent_bytes = memory.size() - std::min<uint64_t>(present, memory.size());
  return placement;
}

// Asks for page after page. An error number where that is refused.
std::expected<Placement, int> placement_of_pages(MemoryCalls& calls,
                                                 const std::vector<Mapping>& mappings,
                                                 std::span<const std::byte> memory, int node) {
  PageQuery query(calls, node);
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = start + memory.size();
  int failed = 0;
  uintptr_t at = start;
  // Mappings are long and few, so the step is looked up once per 2 MiB.
  while (at < end && failed == 0) {
    const size_t step = step_bytes(mappings, at);
    const size_t slice_bytes = std::max(step, kHugePageBytes);
    const uintptr_t slice_end = std::min(end, (at / slice_bytes + 1) * slice_bytes);
    while (at < slice_end && failed == 0) {
      const uintptr_t next = std::min(slice_end, (at / step + 1) * step);
      failed = query.add(at / step * step, next - at);
      at = next;
    }
  }
  if (failed == 0) failed = query.flush();
  if (failed != 0) return std::unexpected(failed);
  return query.placement();
}

// Workers take slices in turn. A slice is small enough that the last one ends soon after the
// others, and large enough that taking one costs nothing beside filling it (about 15 ms).
constexpr size_t kSliceBytes = 64U << 20U;

// A signal interrupts the kernel's work; it goes on where it was. Bounded, so that a kernel that
// always says so cannot hold up the start for ever.
constexpr int kTries = 1000;

enum class Touch { kWrite, kRead };

int populate_slice(MemoryCalls& calls, std::byte* data, size_t bytes, Touch touch) {
  int error = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const bool reads = touch == Touch::kRead;
    if ((reads ? calls.populate_read(data, bytes) : calls.populate(data, bytes)) == 0) return 0;
    error = errno;
    if (error != EINTR && error != EAGAIN) break;
  }
  if (error != EINVAL && error != ENOSYS) return error;
  // A kernel before 5.14. Never reached for pages of a pool that could be refused here.
  for (size_t offset = 0; offset < bytes; offset += kSmallPageBytes) {
    volatile std::byte& first = *const_cast<volatile std::byte*>(data + offset);
    if (touch == Touch::kRead) {
      [[maybe_unused]] const std::byte value = first;
    } else {
      first = std::byte{0};
    }
  }
  return 0;
}

// Slice after slice: a worker that is free takes the next.
int populate_all(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes,
                 Workers* workers, Touch touch) {
  const size_t slice_bytes = std::max(kSliceBytes, page_bytes);
  std::atomic<size_t> next = 0;  // offset of the slice to take
  std::atomic<int> failed = 0;   // the first error; read by all, so that they stop
  const auto work = [&](size_t) {
    while (failed.load(std::memory_order_relaxed) == 0) {
      const size_t offset = next.fetch_add(slice_bytes, std::memory_order_relaxed);
      if (offset >= memory.size()) return;
      const size_t bytes = std::min(slice_bytes, memory.size() - offset);
      const int error = populate_slice(calls, memory.data() + offset, bytes, touch);
      int none = 0;
      if (error != 0) failed.compare_exchange_strong(none, error);
    }
  };
  if (workers != nullptr) {
    workers->run(work);
  } else {
    work(0);
  }
  return failed;
}

}  // namespace

Result<Placement> examine_placement(std::span<const std::byte> memory, int node,
                                    MemoryCalls* calls) {
  const auto mappings = read_mappings(memory).value_or(std::vector<Mapping>());
  const auto of_pages =
      placement_of_pages(calls != nullptr ? *calls : MemoryCalls::system(), mappings, memory, node);
  if (of_pages && of_pages->absent_bytes == 0) return *of_pages;
  // Refused, or some are missing: a kernel 6.1 was seen to leave out pages of unbound memory for a
  // moment, probably those that kernel.numa_balancing had unmapped to see which node uses them.
  const auto of_mappings = placement_of_mappings(mappings, memory, node);
  if (of_mappings && (!of_pages || of_mappings->absent_bytes < of_pages->absent_bytes)) {
    return *of_mappings;
  }
  if (of_pages) return *of_pages;
  return machine_refused(
      "cannot ask on which nodes {} MiB of memory lie: move_pages: {}; allow it in the container's "
      "seccomp profile (Docker's own does not list it)",
      memory.size() >> 20U, std::strerror(of_pages.error()));
}

std::optional<PageSizes> read_page_sizes(std::span<const std::byte> memory) {
  const auto mappings = read_mappings(memory);
  if (!mappings) return std::nullopt;
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  PageSizes sizes;
  for (const Mapping& mapping : *mappings) {
    const uint64_t inside = std::min<uintptr_t>(mapping.end, start + memory.size()) -
                            std::max<uintptr_t>(mapping.start, start);
    const bool pool = mapping.is_hugetlb();
    sizes.resident_bytes += pool ? inside : std::min(inside, mapping.resident_bytes);
    sizes.huge_bytes += pool ? inside : std::min(inside, mapping.transparent_bytes);
  }
  return sizes;
}

std::optional<uint64_t> huge_bytes(std::span<const std::byte> memory) {
  const auto sizes = read_page_sizes(memory);
  if (!sizes) return std::nullopt;
  return sizes->huge_bytes;
}

int populate(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes, Workers* workers) {
  return populate_all(calls, memory, page_bytes, workers, Touch::kWrite);
}

int populate_filled(MemoryCalls& calls, std::span<std::byte> memory, size_t page_bytes,
                    Workers* workers) {
  return populate_all(calls, memory, page_bytes, workers, Touch::kRead);
}

}  // namespace lockstep
