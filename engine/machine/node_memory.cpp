#include "engine/machine/node_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/checked_math.h"
#include "engine/base/log.h"
#include "engine/machine/arena_rules.h"
#include "engine/machine/control_group.h"
#include "engine/machine/machine_settings.h"
#include "engine/machine/memory_budget.h"
#include "engine/machine/memory_calls.h"
#include "engine/machine/page_placement.h"
#include "engine/machine/topology.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

using std::filesystem::path;

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Flags that Debian 12's headers do not know.
constexpr unsigned kMemfdNoExecute = 0x8;  // MFD_NOEXEC_SEAL, Linux 6.3
constexpr unsigned kHugeShift = 26;        // MAP_HUGE_SHIFT and MFD_HUGE_SHIFT

bool is_hugetlb(PageKind kind) {
  return kind == PageKind::kHuge1GiB || kind == PageKind::kHuge2MiB;
}

// The page size, in the form in which mmap's and memfd_create's flags take it.
unsigned huge_size_flag(PageKind kind) {
  return (kind == PageKind::kHuge1GiB ? 30U : 21U) << kHugeShift;
}

// Once in the life of the process: every arena of every rank gets the same refusal.
void warn_of_unbound_memory(int error) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  spdlog::warn(
      "memory cannot be bound to its node (mbind: {}); it will lie where the workers that touch it "
      "first run, and may lie elsewhere where a node is full. In a container, allow mbind: "
      "--cap-add SYS_NICE, or a seccomp profile that lists it",
      std::strerror(error));
}

}  // namespace

// Makes one arena: tries the kinds of pages from the largest on.
class NodeMemory::Maker {
 public:
  explicit Maker(const MemoryRequest& request)
      : request_(request),
        calls_(request.calls != nullptr ? *request.calls : MemoryCalls::system()),
        topology_(read_topology(calls_.root() / "sys", {})),
        settings_(read_huge_page_settings(calls_.root())),
        pool_limits_(read_control_group_limits(calls_.root()).pools) {}

  Result<NodeMemory> make();

 private:
  struct Candidate {
    PageKind kind = PageKind::kSmall;
    bool memfd = false;
    size_t bytes = 0;
  };
  // Why a candidate did not work. An error is the request's end, without one the next candidate is
  // tried.
  struct Failure {
    std::string reason;
    std::optional<Error> error;
  };
  using Attempt = std::expected<NodeMemory, Failure>;

  std::optional<std::vector<Candidate>> candidates();
  void add(std::vector<Candidate>& list, PageKind kind, size_t bytes) const;
  Attempt attempt(const Candidate& candidate);
  std::optional<Failure> open_memfd(const Candidate& candidate, NodeMemory& memory);
  std::optional<Failure> map(const Candidate& candidate, NodeMemory& memory);
  std::optional<Failure> bind(NodeMemory& memory);
  std::optional<Failure> check_budget(size_t bytes, bool bound) const;
  std::optional<Failure> fill(const Candidate& candidate, NodeMemory& memory);
  void find_page_kind(const Candidate& candidate, NodeMemory& memory) const;
  Failure failed(std::string_view call) const;
  Error refused(uint64_t bytes, std::string_view reason, uint64_t available) const;

  const MemoryRequest& request_;
  MemoryCalls& calls_;
  Topology topology_;
  MachineSettings settings_;
  PoolLimits pool_limits_;
  bool no_memfd_ = false;  // the kernel has none, or a filter forbids them
};

NodeMemory::Maker::Failure NodeMemory::Maker::failed(std::string_view call) const {
  return {fmt::format("{}: {}", call, std::strerror(errno)), std::nullopt};
}

Error NodeMemory::Maker::refused(uint64_t bytes, std::string_view reason,
                                 uint64_t available) const {
  const std::string where = request_.node < 0 ? "" : fmt::format(" on node {}", request_.node);
  // Weights are taken first, as large as the model is, whatever the cache takes after them.
  const std::string_view smaller =
      request_.what == "weights" ? "model" : "model, --context or --sequences";
  return {ErrorKind::kMachineRefused,
          fmt::format("cannot take {} MiB of memory for {}{}: {}; {} MiB are available{}. Use a "
                      "smaller {}, or free memory",
                      bytes >> 20U, request_.what, where, reason, available >> 20U,
                      where.empty() ? "" : " there", smaller)};
}

void NodeMemory::Maker::add(std::vector<Candidate>& list, PageKind kind, size_t bytes) const {
  // Huge pages matter in every pass, a memfd only at a restart: a memfd of small pages comes after
  // huge pages of anonymous memory. Where memfds are given no huge pages, which is the kernels'
  // default (shmem_enabled), that means anonymous memory.
  const bool huge_memfd = is_hugetlb(kind) || gives_shared_huge_pages(settings_);
  if (request_.shared && (huge_memfd || kind == PageKind::kSmall)) {
    list.push_back({kind, true, bytes});
  } else if (request_.small_shared) {
    list.push_back({PageKind::kSmall, true, bytes});
  }
  if (kind != PageKind::kTransparent || gives_huge_pages(settings_)) {
    list.push_back({kind, false, bytes});
  }
}

// None when the size is beyond all reason.
std::optional<std::vector<NodeMemory::Maker::Candidate>> NodeMemory::Maker::candidates() {
  const auto size = checked_round_up(request_.bytes, kHugePageBytes);
  const auto giant = checked_round_up(request_.bytes, kGigaPageBytes);
  if (!size || !giant || *giant > kUnlimited / 2) return std::nullopt;
  std::vector<Candidate> list;
  // Kernels before 5.14 cannot say that a page of the pool is not to be had: touching it kills.
  const bool can_populate = calls_.populate(nullptr, 0) == 0;
  const auto pool_holds = [&](size_t page_bytes, uint64_t bytes) {
    const uint64_t free = free_pool_bytes(topology_, pool_limits_, request_.node, page_bytes);
    if (free > 0 && free < bytes) {
      spdlog::info("{} MiB are free in the pool of {} MiB pages{}, {} need {}: not used",
                   free >> 20U, page_bytes >> 20U,
                   request_.node < 0 ? "" : fmt::format(" on node {}", request_.node),
                   request_.what, bytes >> 20U);
    }
    return can_populate && free >= bytes;
  };
  const bool worth_giant = deserves_giga_pages(request_.bytes, *giant);
  if (worth_giant && pool_holds(kGigaPageBytes, *giant)) add(list, PageKind::kHuge1GiB, *giant);
  if (pool_holds(kHugePageBytes, *size)) add(list, PageKind::kHuge2MiB, *size);
  add(list, PageKind::kTransparent, *size);
  add(list, PageKind::kSmall, *size);
  return list;
}

Result<NodeMemory> NodeMemory::Maker::make() {
  const auto list = candidates();
  if (!list) {
    return std::unexpected(refused(request_.bytes, "that is more than any machine has",
                                   available_memory_bytes(calls_.root())));
  }
  std::string reason;
  std::optional<PageKind> failed_kind;
  for (const Candidate& candidate : *list) {
    if (candidate.memfd && no_memfd_) continue;
    if (failed_kind == candidate.kind) continue;
    auto made = attempt(candidate);
    if (made) {
      if ((request_.shared || request_.small_shared) && made->descriptor_ < 0) {
        spdlog::debug(
            "{} lie in anonymous memory ({}): memfds are given no huge pages here, or "
            "there are none",
            request_.what, page_kind_name(made->page_kind_));
      }
      return std::move(*made);
    }
    if (made.error().error) return std::unexpected(*made.error().error);
    reason = made.error().reason;
    if (candidate.memfd && no_memfd_) continue;  // the same pages without a memfd
    if (is_hugetlb(candidate.kind)) {
      spdlog::warn("{}: pages of the pool ({}) were not to be had: {}; trying the next kind",
                   request_.what, page_kind_name(candidate.kind), reason);
      failed_kind = candidate.kind;
    }
  }
  const path root = calls_.root();
  return std::unexpected(refused(list->back().bytes, reason,
                                 request_.node < 0
                                     ? available_memory_bytes(root)
                                     : available_memory_bytes_on_node(request_.node, root)));
}

// Whatever fails, `memory` gives back what it has.
NodeMemory::Maker::Attempt NodeMemory::Maker::attempt(const Candidate& candidate) {
  NodeMemory memory;
  memory.calls_ = &calls_;
  memory.node_ = request_.node;
  memory.page_kind_ = candidate.kind;
  if (candidate.memfd) {
    if (auto failure = open_memfd(candidate, memory)) return std::unexpected(*failure);
  }
  if (auto failure = map(candidate, memory)) return std::unexpected(*failure);
  if (auto failure = bind(memory)) return std::unexpected(*failure);
  if (!is_hugetlb(candidate.kind)) {
    if (auto failure = check_budget(candidate.bytes, memory.bound_))
      return std::unexpected(*failure);
  }
  if (auto failure = fill(candidate, memory)) return std::unexpected(*failure);
  find_page_kind(candidate, memory);
  if (request_.lock) {
    if (auto locked = memory.lock(request_.what); !locked) {
      return std::unexpected(Failure{"", locked.error()});
    }
  }
  return memory;
}

std::optional<NodeMemory::Maker::Failure> NodeMemory::Maker::open_memfd(const Candidate& candidate,
                                                                        NodeMemory& memory) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (is_hugetlb(candidate.kind)) flags |= MFD_HUGETLB | huge_size_flag(candidate.kind);
  const std::string name = fmt::format("lockstep {}", request_.what);
  memory.descriptor_ = calls_.make_memfd(name.c_str(), flags | kMemfdNoExecute);
  if (memory.descriptor_ < 0 && errno == EINVAL) {
    memory.descriptor_ = calls_.make_memfd(name.c_str(), flags);
  }
  if (memory.descriptor_ < 0) {
    no_memfd_ = true;
    return failed("memfd_create");
  }
  if (calls_.resize(memory.descriptor_, candidate.bytes) != 0) {
    no_memfd_ = true;
    return failed("ftruncate");
  }
  return std::nullopt;
}

std::optional<NodeMemory::Maker::Failure> NodeMemory::Maker::map(const Candidate& candidate,
                                                                 NodeMemory& memory) {
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  const int sharing = candidate.memfd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  // Never MAP_NORESERVE: pages of the pool that are not reserved kill the process that touches
  // them.
  if (is_hugetlb(candidate.kind)) {
    const int flags =
        candidate.memfd ? sharing
                        : sharing | MAP_HUGETLB | static_cast<int>(huge_size_flag(candidate.kind));
    void* const mapping =
        calls_.map(nullptr, candidate.bytes, kReadWrite, flags, memory.descriptor_);
    if (mapping == MAP_FAILED) return failed("mmap");
    memory.mapping_ = mapping;
    memory.mapping_bytes_ = candidate.bytes;
    memory.data_ = static_cast<std::byte*>(mapping);
  } else {
    // Address space for an aligned range with a guard page on either side. The guards also keep
    // the kernel from joining two arenas into one mapping, whose figures could not be told apart.
    const size_t reserved = candidate.bytes + kHugePageBytes + 2 * kSmallPageBytes;
    void* const mapping = calls_.map(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (mapping == MAP_FAILED) return failed("mmap");
    memory.mapping_ = mapping;
    memory.mapping_bytes_ = reserved;
    const uintptr_t aligned =
        round_up<uintptr_t>(reinterpret_cast<uintptr_t>(mapping) + kSmallPageBytes, kHugePageBytes);
    memory.data_ = reinterpret_cast<std::byte*>(aligned);
    if (!candidate.memfd) {
      if (calls_.protect(memory.data_, candidate.bytes, kReadWrite) != 0) return failed("mprotect");
    } else if (calls_.map(memory.data_, candidate.bytes, kReadWrite, sharing | MAP_FIXED,
                          memory.descriptor_) == MAP_FAILED) {
      return failed("mmap");
    }
  }
  memory.size_bytes_ = candidate.bytes;
  // A core of a hundred gigabytes helps nobody, and delays the restart.
  calls_.advise(memory.data_, memory.size_bytes_, MADV_DONTDUMP);
  return std::nullopt;
}

std::optional<NodeMemory::Maker::Failure> NodeMemory::Maker::bind(NodeMemory& memory) {
  if (request_.node < 0) return std::nullopt;
  if (calls_.bind(memory.data_, memory.size_bytes_, request_.node) == 0) {
    memory.bound_ = true;
    return std::nullopt;
  }
  if (errno == EPERM || errno == ENOSYS) {
    // With one node there is no wrong one.
    if (topology_.nodes.size() > 1) warn_of_unbound_memory(errno);
    return std::nullopt;
  }
  if (errno != EINVAL) return failed("mbind");
  return Failure{"",
                 Error{ErrorKind::kMachineRefused,
                       fmt::format("cannot place {} on node {}: it has no memory that this "
                                   "process may use; start ranks on other nodes only (--ranks), "
                                   "or allow its memory (cpuset.mems, AllowedMemoryNodes=)",
                                   request_.what, request_.node)}};
}

// Overcommit lets a mapping succeed that would be killed when touched: ask first. Memory that is
// not bound may spill over to other nodes.
std::optional<NodeMemory::Maker::Failure> NodeMemory::Maker::check_budget(size_t bytes,
                                                                          bool bound) const {
  const path root = calls_.root();
  uint64_t available = available_memory_bytes(root);
  uint64_t reserve = kReserveBytes;
  if (bound) {
    available = available_memory_bytes_on_node(request_.node, root);
    const Node* const node = topology_.find_node(request_.node);
    if (node != nullptr) reserve = node_reserve_bytes(node->memory_bytes);
  }
  if (bytes <= available && available - bytes >= reserve) return std::nullopt;
  return Failure{"", refused(bytes, "not enough is available", available)};
}

std::optional<NodeMemory::Maker::Failure> NodeMemory::Maker::fill(const Candidate& candidate,
                                                                  NodeMemory& memory) {
  if (candidate.kind == PageKind::kTransparent &&
      calls_.advise(memory.data_, memory.size_bytes_, MADV_HUGEPAGE) != 0) {
    memory.page_kind_ = PageKind::kSmall;  // a kernel without them
  }
  const int error = populate(calls_, {memory.data_, memory.size_bytes_},
                             page_bytes_of(candidate.kind), request_.workers);
  if (error == 0) return std::nullopt;
  errno = error;
  return failed("populating it");
}

// A kernel that finds no free block of 2 MiB gives small pages without a word.
void NodeMemory::Maker::find_page_kind(const Candidate& candidate, NodeMemory& memory) const {
  if (memory.page_kind_ != PageKind::kTransparent) return;
  const auto sizes = read_page_sizes({memory.data_, memory.size_bytes_});
  if (!sizes || sizes->huge_bytes == sizes->resident_bytes) return;
  spdlog::info("{}: {} of {} MiB are in transparent huge pages, the rest in pages of 4 KiB",
               request_.what, sizes->huge_bytes >> 20U, candidate.bytes >> 20U);
  if (sizes->huge_bytes < sizes->resident_bytes / 2) memory.page_kind_ = PageKind::kSmall;
}

std::string_view page_kind_name(PageKind kind) {
  switch (kind) {
    case PageKind::kHuge1GiB:
      return "hugetlb 1 GiB";
    case PageKind::kHuge2MiB:
      return "hugetlb 2 MiB";
    case PageKind::kTransparent:
      return "transparent 2 MiB";
    case PageKind::kSmall:
      return "4 KiB";
  }
  return "unknown";
}

Result<NodeMemory> NodeMemory::allocate(const MemoryRequest& request) {
  if (request.bytes == 0) return NodeMemory();
  return Maker(request).make();
}

Result<void> NodeMemory::lock(std::string_view what) {
  if (calls_->lock(data_, size_bytes_) == 0) {
    locked_ = true;
    return {};
  }
  const int error = errno;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string allowed =
      limit.rlim_cur == RLIM_INFINITY
          ? "no limit is set"
          : fmt::format("this process may lock {} MiB in all", limit.rlim_cur >> 20U);
  return machine_refused(
      "cannot lock {} MiB of {} in memory: {}; {}. Raise the limit (LimitMEMLOCK=infinity in a "
      "service, --ulimit memlock=-1 for a container, ulimit -l unlimited), or leave out "
      "--lock-memory",
      size_bytes_ >> 20U, what, std::strerror(error), allowed);
}

NodeMemory::NodeMemory(NodeMemory&& other) noexcept {
  *this = std::move(other);
}

NodeMemory& NodeMemory::operator=(NodeMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(page_kind_, other.page_kind_);
  std::swap(node_, other.node_);
  std::swap(bound_, other.bound_);
  std::swap(sealed_, other.sealed_);
  std::swap(locked_, other.locked_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(calls_, other.calls_);
  return *this;
}

NodeMemory::~NodeMemory() {
  if (mapping_ != nullptr) calls_->unmap(mapping_, mapping_bytes_);
  if (descriptor_ >= 0) calls_->close(descriptor_);
}

}  // namespace lockstep
