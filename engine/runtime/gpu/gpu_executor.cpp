#include "engine/runtime/gpu/gpu_executor.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/operations/gpu_constants.h"
#include "engine/runtime/gpu/gpu_trials.h"
#include "engine/runtime/rank.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLastLooks = 3;

// All tables', in order.
std::vector<double> rotary_frequencies(const Plan& plan) {
  std::vector<double> all;
  for (const Step& step : plan.steps) {
    const auto* const table = std::get_if<RotaryTableStep>(&step.work);
    if (table == nullptr) continue;
    all.insert(all.end(), table->frequencies.begin(), table->frequencies.end());
  }
  return all;
}

// The staging holds one of these at a time: a batch, the frequencies, other constants, a hidden
// row, or one of logits.
size_t staging_bytes(const Plan& plan, bool has_logits) {
  return std::max({gpu_batch_bytes(std::get<GpuAreas>(plan.areas).limits),
                   plan.hidden.width * sizeof(float),
                   has_logits ? plan.vocabulary_size * sizeof(float) : 0,
                   rotary_frequencies(plan).size() * sizeof(double),
                   gpu_constants(plan).size() * sizeof(float)});
}

}  // namespace

Result<std::unique_ptr<GpuExecutor>> GpuExecutor::open(const GpuPlatform& platform, int gpu) {
  if (platform.let_launches_overlap != nullptr) {
    platform.let_launches_overlap(platform.settings.launch_overlap);
  }
  auto device = platform.open(gpu);
  if (!device) return std::unexpected(device.error());
  auto stream = (*device)->make_stream();
  if (!stream) return std::unexpected(stream.error());
  std::unique_ptr<GpuExecutor> rank(new GpuExecutor(platform, std::move(*device)));
  rank->stream_ = std::move(*stream);
  return rank;
}

GpuExecutor::~GpuExecutor() {
  if (library_ != nullptr && device_->is_lost()) library_->abandon();
}

Result<void> GpuExecutor::allocate(const Plan& sizes, int node, const HostShare& host) {
  among_processors_ = host.exchange;
  struct ArenaRequest {
    GpuMemory& arena;
    size_t bytes;
    std::string_view what;
  };
  const ArenaRequest requests[] = {
      {weights_, sizes.weight_bytes, "weights"},
      {scratch_, sizes.scratch_bytes, "activations"},
      {exchange_, host.exchange ? 0 : sizes.exchange_bytes, "activations that ranks exchange"},
      {kv_, sizes.kv.size_bytes(), "the KV cache"},
      {logits_, host.logits ? 0 : sizes.logits_bytes, "logits"},
  };
  for (const ArenaRequest& request : requests) {
    auto memory = device_->allocate(request.bytes, request.what);
    if (!memory) return std::unexpected(memory.error());
    request.arena = std::move(*memory);
  }
  // Other ranks' parts of the logits are of no use to them.
  const bool has_logits = logits_.size_bytes() > 0 && sizes.rank == 0;
  struct HostRequest {
    NodeMemory& memory;
    size_t bytes;
    std::string_view what;
  };
  const HostRequest host_requests[] = {
      {staging_, staging_bytes(sizes, has_logits), "what is copied to a GPU"},
      {given_rows_, gpu_given_bytes(sizes), "rows that a batch brings to a GPU"},
      {staging_ahead_, has_logits ? gpu_batch_bytes(std::get<GpuAreas>(sizes.areas).limits) : 0,
       "what is copied to a GPU ahead"},
      {candidates_,
       has_logits ? kGpuPassesAtOnce * std::get<GpuAreas>(sizes.areas).candidate_bytes : 0,
       "the likeliest logits"},
  };
  for (const HostRequest& request : host_requests) {
    if (request.bytes == 0) continue;
    auto memory =
        NodeMemory::allocate({.bytes = request.bytes, .what = request.what, .node = node});
    if (!memory) return std::unexpected(memory.error());
    request.memory = std::move(*memory);
    if (auto pinned = pin(request.memory); !pinned) return pinned;
  }
  return has_logits ? results_.allocate(*device_, sizes, node) : Result<void>();
}

Result<void> GpuExecutor::pin(const NodeMemory& memory) {
  if (memory.size_bytes() == 0) return {};
  auto pinned = device_->pin({memory.data(), memory.size_bytes()});
  if (!pinned) return std::unexpected(pinned.error());
  pinned_.push_back(std::move(*pinned));
  return {};
}

size_t GpuExecutor::timed_sum_bytes_max() const {
  return std::min({platform_.timed_sum_bytes_max, exchange_.size_bytes(), scratch_.size_bytes()});
}

Result<std::vector<GpuSumRounds>> GpuExecutor::time_sums(size_t bytes_max) {
  CHECK(plan_ == nullptr, "sums are timed where a plan's constants may lie");
  if (auto used = device_->use(); !used) return std::unexpected(used.error());
  auto rounds = time_gpu_sums({.collectives = *platform_.collectives,
                               .peers = *links_.peers,
                               .stream = stream_->handle(),
                               .partial = reinterpret_cast<const float*>(exchange_.data()),
                               .output = reinterpret_cast<float*>(scratch_.data()),
                               .bytes_max = bytes_max,
                               .wait = [this] { return wait(); }});
  exchange_ns_ = exchange_time();
  return rounds;
}

ArenaAddresses GpuExecutor::arenas() const {
  return RankArenas<GpuMemory>{weights_, scratch_, exchange_, kv_, logits_}.addresses();
}

Result<void> GpuExecutor::prepare(const Plan& plan, const ArenaAddresses& addresses,
                                  const Peers& peers) {
  CHECK(plan_ == nullptr, "a GPU's plan is made once");
  plan_ = &plan;
  addresses_ = &addresses;
  areas_ = &std::get<GpuAreas>(plan.areas);
  if (auto used = device_->use(); !used) return used;
  const size_t library_bytes = areas_->library ? kGpuLibraryBytes : 0;
  auto library = platform_.open_matrix_library(device_->index(),
                                               {addresses.at(areas_->library), library_bytes});
  if (!library) return std::unexpected(library.error());
  library_ = std::move(*library);
  const GpuHostRows host = {.candidates = reinterpret_cast<GpuCandidateRow*>(candidates_.data()),
                            .given = reinterpret_cast<const float*>(given_rows_.data())};
  program_ =
      std::make_unique<GpuProgram>(plan, addresses, peers, platform_, *library_, links_, host);
  if (auto prepared = program_->prepare(stream_->handle()); !prepared) return prepared;
  auto event = device_->make_event();
  if (!event) return std::unexpected(event.error());
  first_ended_ = std::move(*event);
  if (auto waited = wait(); !waited) return waited;
  if (auto filled = fill_constants(); !filled) return filled;
  if (auto cleared = clear_counters(); !cleared) return cleared;
  find_hand_overs();
  is_alone_ = computes_alone();
  return among_processors_ ? Result<void>() : record();
}

// A rank takes at most one residual, and gives at most one.
void GpuExecutor::find_hand_overs() {
  for (const Step& step : plan_->steps) {
    const auto* const hand_over = std::get_if<HandOverStep>(&step.work);
    if (hand_over == nullptr) continue;
    const size_t stride_bytes = hand_over->output_stride * sizeof(float);
    if (hand_over->giver == plan_->rank) {
      CHECK(hand_over->input_stride == hand_over->output_stride,
            "rows are {} floats apart on one rank and {} on another", hand_over->input_stride,
            hand_over->output_stride);
      given_.rows =
          reinterpret_cast<std::byte*>(const_cast<float*>(addresses_->at(hand_over->input)));
      given_.stride_bytes = stride_bytes;
    } else if (hand_over->taker == plan_->rank) {
      taken_.rows = reinterpret_cast<std::byte*>(addresses_->at(hand_over->output));
      taken_.stride_bytes = stride_bytes;
    }
  }
}

Result<void> GpuExecutor::fill_constants() {
  const auto fill = [&](const auto& area, const auto& values) -> Result<void> {
    if (values.empty()) return {};
    const size_t bytes = values.size() * sizeof(values[0]);
    std::memcpy(staging_.data(), values.data(), bytes);
    auto copied = stream_->copy(addresses_->at(area), staging_.data(), bytes);
    return copied ? wait() : copied;
  };
  if (auto filled = fill(areas_->frequencies, rotary_frequencies(*plan_)); !filled) return filled;
  return fill(areas_->constants, gpu_constants(*plan_));
}

// Every launch of attention leaves its counters as it found them.
Result<void> GpuExecutor::clear_counters() {
  const GpuPartials& partials = areas_->partials;
  if (!partials.arrived) return {};
  auto cleared = stream_->clear(addresses_->at(partials.arrived),
                                partials.unit_count * partials.head_count * sizeof(uint32_t));
  return cleared ? wait() : cleared;
}

Result<void> GpuExecutor::exchange_first() {
  if (auto used = device_->use(); !used) return used;
  program_->connect(stream_->handle());
  // Another rank may still be connecting.
  if (auto waited = wait(kJoinDeadline); !waited) return waited;
  exchange_ns_ = exchange_time();
  return {};
}

Result<void> GpuExecutor::recover() {
  if (auto used = device_->use(); !used) return used;
  if (auto waited = stream_->wait(settings().pass_deadline); !waited) return waited;
  if (auto state = library_->state(); !state) return state;
  has_waited_in_vain_ = false;
  return {};
}

// A rank that waits for another in vain says so in its word, and goes on.
Result<void> GpuExecutor::wait(std::chrono::nanoseconds deadline, const GpuEvent* event) {
  auto waited = event == nullptr ? stream_->wait(deadline) : stream_->wait_until(*event, deadline);
  if (!waited) return who_hangs(waited.error());
  if (library_ != nullptr) {
    if (auto state = library_->state(); !state) return state;
  }
  if (links_.nccl) {
    auto sound = links_.nccl->ranks->check(links_.nccl->rank);
    has_waited_in_vain_ = !sound;
    if (!sound) return sound;
  }
  if (const auto missing = missing_peer()) return did_not_come(*missing);
  return {};
}

std::unexpected<Error> GpuExecutor::did_not_come(size_t rank) {
  has_waited_in_vain_ = true;
  return machine_refused(
      "gpu{}: rank {} did not come to a sum in time; its GPU is lost or far behind",
      device_->index(), rank);
}

std::unexpected<Error> GpuExecutor::did_not_hand_over(size_t rank) {
  has_waited_in_vain_ = true;
  return machine_refused(
      "gpu{}: rank {}, which has the layers {} its own, did not come to their border in time; its "
      "GPU is lost or far behind",
      device_->index(), rank, rank > plan_->rank ? "before" : "behind");
}

std::optional<size_t> GpuExecutor::missing_peer() const {
  if (!links_.peers) return std::nullopt;
  return missing_rank(std::atomic_ref(*links_.peers->failure).load());
}

// For whom a GPU whose stream has not ended in time waits over peer memory, or has waited in vain.
// Only while it waits does it say so again and again.
std::optional<size_t> GpuExecutor::awaited_peer() {
  if (!links_.peers) return std::nullopt;
  const auto waiting = [this] { return std::atomic_ref(*links_.peers->waiting).load(); };
  const uint32_t before = waiting();
  for (int look = 0; look < kLastLooks; ++look) {
    const auto ended = stream_->wait(kLastWait);
    if (const auto missing = missing_peer()) return missing;
    if (const uint32_t now = waiting(); now != before) return awaited_rank(now);
    if (ended) break;
  }
  return std::nullopt;
}

// A rank that waits for others runs out of time when they do. Over peer memory it says for whom it
// waits, and of layers the event of those before has not come. A wait by NCCL ends when it is
// aborted: the stream that does not is its own GPU's failure.
std::unexpected<Error> GpuExecutor::who_hangs(const Error& error) {
  if (const auto awaited = awaited_peer()) return did_not_come(*awaited);
  if (taken_.border != nullptr && taken_.border->is_awaited()) {
    return did_not_hand_over(taken_.border->giver().rank);
  }
  if (!links_.nccl) return std::unexpected(error);
  NcclRanks& joined = *links_.nccl->ranks;
  joined.abort(
      machine_refused("what the GPUs exchange by NCCL was not done in time, though each of "
                      "them answers; look for Xid messages in the kernel's log and at the "
                      "links between them (nvidia-smi topo -m), and set NCCL_DEBUG=WARN to "
                      "hear more")
          .error());
  if (!stream_->wait(kLastWait)) return std::unexpected(error);
  has_waited_in_vain_ = true;
  return std::unexpected(joined.check(links_.nccl->rank).error());
}

Result<void> GpuExecutor::record() {
  for (const GpuPassShape& shape : generation_shapes(*plan_)) {
    if (!program_->is_recordable(shape)) continue;
    if (auto begun = stream_->begin_recording(); !begun) return begun;
    program_->enqueue(stream_->handle(), shape, program_->launches(program_->steps()),
                      std::numeric_limits<size_t>::max());
    auto recording = stream_->end_recording();
    if (!recording) return std::unexpected(recording.error());
    recordings_.emplace(shape, std::move(*recording));
  }
  return {};
}

Result<void> GpuExecutor::run_steps(Range steps) {
  const Clock::time_point begin = Clock::now();
  auto enqueued = enqueue(steps, begin);
  return enqueued ? wait_since(begin) : enqueued;
}

// Waits whenever the GPU is far behind: a launch that CUDA keeps until it has done one has no
// deadline.
Result<void> GpuExecutor::enqueue(Range steps, Clock::time_point begin) {
  Range left = program_->launches(steps);
  while (true) {
    left = program_->enqueue(stream_->handle(), shape_, left);
    if (left.empty()) return {};
    if (auto waited = wait_since(begin); !waited) return waited;
  }
}

// The other ranks' GPUs would wait for this one until their deadline.
Result<void> GpuExecutor::run(const Batch& batch) {
  auto computed = compute(batch);
  if (computed) return computed;
  if (links_.nccl) links_.nccl->ranks->abort(computed.error());
  for (const HandOver* const end : {&taken_, &given_}) {
    if (end->border != nullptr) end->border->abandon();
  }
  return computed;
}

// A chunk after the other: a token sees keys of its own chunk and of those before. The GPU is
// waited for between two, so that the staging is free; the others compute meanwhile.
Result<void> GpuExecutor::compute(const Batch& batch) {
  const Clock::time_point begin = Clock::now();
  const size_t count = batch.tokens.size();
  has_chunks_ = count > plan_->chunk_tokens;
  exchanged_ = {};
  Range rows;
  for (size_t first = 0; first == 0 || first < count; first += plan_->chunk_tokens) {
    const Range tokens = {first, std::min(count, first + plan_->chunk_tokens)};
    const auto end = std::ranges::lower_bound(batch.logit_tokens, tokens.end);
    rows = {rows.end, static_cast<size_t>(end - batch.logit_tokens.begin())};
    if (auto computed = compute(batch, tokens, rows, begin); !computed) return computed;
    count_exchange(std::span(batch.tokens).subspan(tokens.begin, tokens.size()));
  }
  return {};
}

Result<void> GpuExecutor::compute(const Batch& batch, Range tokens, Range rows,
                                  Clock::time_point begin) {
  if (auto begun = this->begin(batch, tokens, rows); !begun) return begun;
  if (auto taken = take_rows(tokens.size(), begin); !taken) return taken;
  auto computed = play_or_enqueue(begin);
  if (computed) computed = give_rows(tokens.size(), begin);
  if (computed && has_chunks_ && logits_.size_bytes() > 0) {
    computed = results_.keep(*stream_, *plan_, chunk_places(), tokens, rows);
  }
  if (computed) computed = wait_since(begin);
  if (computed && taken_.border != nullptr) taken_.border->end_chunk();
  return computed;
}

Result<void> GpuExecutor::play_or_enqueue(Clock::time_point begin) {
  const auto recorded = recordings_.find(shape_);
  return recorded != recordings_.end() ? stream_->play(*recorded->second)
                                       : enqueue(program_->steps(), begin);
}

GpuPassResults::Places GpuExecutor::chunk_places() const {
  return {addresses_->at(plan_->logits), addresses_->at(plan_->hidden.residual),
          candidates_.data() + turn_ * areas_->candidate_bytes};
}

Result<void> GpuExecutor::take_rows(size_t tokens, Clock::time_point begin) {
  if (taken_.border == nullptr) return {};
  const auto taken = taken_.border->take(*stream_, taken_.rows, tokens * taken_.stride_bytes,
                                         begin + settings().pass_deadline);
  if (!taken) return std::unexpected(taken.error());
  if (!*taken) return did_not_hand_over(taken_.border->giver().rank);
  return {};
}

Result<void> GpuExecutor::give_rows(size_t tokens, Clock::time_point begin) {
  if (given_.border == nullptr) return {};
  const auto given = given_.border->give(*stream_, given_.rows, tokens * given_.stride_bytes,
                                         begin + settings().pass_deadline);
  if (!given) return std::unexpected(given.error());
  if (!*given) return did_not_hand_over(given_.border->taker().rank);
  return {};
}

// NCCL's calls have deadlines as well: the time that they have taken is not given once more.
Result<void> GpuExecutor::wait_since(Clock::time_point begin) {
  const auto left = settings().pass_deadline - (Clock::now() - begin);
  return wait(std::max<std::chrono::nanoseconds>(left, kLastWait));
}

uint64_t GpuExecutor::exchange_time() const {
  uint64_t spent = 0;
  if (links_.peers) spent += std::atomic_ref(*links_.peers->spent_ns).load();
  if (links_.nccl) {
    spent += static_cast<uint64_t>(links_.nccl->ranks->time_spent(links_.nccl->rank).count());
  }
  return spent;
}

void GpuExecutor::count_exchange(std::span<const BatchToken> tokens) {
  const uint64_t spent = exchange_time();
  exchanged_.bytes += program_->sent_bytes(shape_, tokens) + tokens.size() * given_.stride_bytes;
  exchanged_.nanoseconds += spent - std::exchange(exchange_ns_, spent);
}

Result<std::span<const float>> GpuExecutor::fetch(const float* from, size_t count) {
  const size_t bytes = count * sizeof(float);
  CHECK(started_count_ == 0, "a row is read while the next pass computes");
  CHECK(bytes <= staging_.size_bytes(), "{} floats are read at once", count);
  if (auto used = device_->use(); !used) return std::unexpected(used.error());
  if (auto copied = stream_->copy(staging_.data(), from, bytes); !copied) {
    return std::unexpected(copied.error());
  }
  if (auto waited = wait(); !waited) return std::unexpected(waited.error());
  return std::span(reinterpret_cast<const float*>(staging_.data()), count);
}

Result<void> GpuExecutor::read(const float* from, std::span<float> to) {
  const auto fetched = fetch(from, to.size());
  if (!fetched) return std::unexpected(fetched.error());
  std::ranges::copy(*fetched, to.begin());
  return {};
}

}  // namespace lockstep
