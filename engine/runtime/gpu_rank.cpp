#include "engine/runtime/gpu_rank.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {
namespace {

const std::vector<double>* rotary_frequencies(const Plan& plan) {
  for (const Step& step : plan.steps) {
    if (const auto* rotary = std::get_if<RotaryTableStep>(&step.work)) return rotary->frequencies;
  }
  return nullptr;
}

// What lies in the staging at one time: a batch, the frequencies, or a hidden row.
size_t staging_bytes(const Plan& plan) {
  const std::vector<double>* frequencies = rotary_frequencies(plan);
  return std::max({gpu_batch_bytes(plan.gpu.limits), plan.hidden.width * sizeof(float),
                   frequencies == nullptr ? 0 : frequencies->size() * sizeof(double)});
}

}  // namespace

Result<std::unique_ptr<GpuRank>> GpuRank::open(const GpuPlatform& platform, int gpu) {
  auto device = platform.open(gpu);
  if (!device) return std::unexpected(device.error());
  auto stream = (*device)->make_stream();
  if (!stream) return std::unexpected(stream.error());
  std::unique_ptr<GpuRank> rank(new GpuRank(platform, std::move(*device)));
  rank->stream_ = std::move(*stream);
  return rank;
}

GpuRank::~GpuRank() {
  if (library_is_lost_) static_cast<void>(library_.release());
}

Result<void> GpuRank::allocate(const Plan& sizes, int node, bool among_processors) {
  among_processors_ = among_processors;
  struct Wish {
    GpuMemory& arena;
    size_t bytes;
    std::string_view what;
  };
  const Wish wishes[] = {
      {weights_, sizes.weight_bytes, "weights"},
      {scratch_, sizes.scratch_bytes, "activations"},
      {exchange_, among_processors ? 0 : sizes.exchange_bytes, "activations that ranks exchange"},
      {kv_, sizes.kv.size_bytes(), "the KV cache"},
  };
  for (const Wish& wish : wishes) {
    auto memory = device_->allocate(wish.bytes, wish.what);
    if (!memory) return std::unexpected(memory.error());
    wish.arena = std::move(*memory);
  }
  auto staging = NodeMemory::allocate(
      {.bytes = staging_bytes(sizes), .what = "what is copied to a GPU", .node = node});
  if (!staging) return std::unexpected(staging.error());
  staging_ = std::move(*staging);
  return pin(staging_);
}

Result<void> GpuRank::pin(const NodeMemory& memory) {
  if (memory.size_bytes() == 0) return {};
  auto pinned = device_->pin({memory.data(), memory.size_bytes()});
  if (!pinned) return std::unexpected(pinned.error());
  pinned_.push_back(std::move(*pinned));
  return {};
}

Result<void> GpuRank::take_mailbox(size_t rank, size_t rank_count) {
  peers_.rank = rank;
  peers_.rank_count = rank_count;
  peers_.deadline_ns = std::chrono::nanoseconds(kSumDeadline).count();
  const size_t bytes = gpu_mailbox_bytes(rank_count, peers_.channel_count);
  auto mailbox = device_->allocate(bytes, "what ranks send to one another");
  if (!mailbox) return std::unexpected(mailbox.error());
  mailbox_ = std::move(*mailbox);
  auto failure = NodeMemory::allocate({.bytes = sizeof(uint32_t), .what = "a GPU's report"});
  if (!failure) return std::unexpected(failure.error());
  failure_ = std::move(*failure);
  peers_.failure = reinterpret_cast<uint32_t*>(failure_.data());
  if (auto pinned = pin(failure_); !pinned) return pinned;
  if (auto used = device_->use(); !used) return used;
  auto cleared = stream_->clear(mailbox_.data(), bytes);
  return cleared ? stream_->wait(kPassDeadline) : cleared;
}

Result<void> GpuRank::connect(std::span<GpuRank* const> ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (auto taken = ranks[rank]->take_mailbox(rank, ranks.size()); !taken) return taken;
  }
  for (GpuRank* rank : ranks) {
    for (size_t other = 0; other < ranks.size(); ++other) {
      const GpuRank& peer = *ranks[other];
      if (auto reached = rank->device_->reach(peer.device_->index()); !reached) return reached;
      rank->peers_.mailboxes[other] = peer.mailbox_.data();
    }
  }
  return {};
}

ArenaAddresses GpuRank::arenas() const {
  const auto address = [](const GpuMemory& arena) {
    return reinterpret_cast<uintptr_t>(arena.data());
  };
  return {.weights = address(weights_),
          .scratch = address(scratch_),
          .exchange = address(exchange_),
          .kv = address(kv_)};
}

Result<void> GpuRank::prepare(const Plan& plan) {
  CHECK(plan_ == nullptr, "a GPU's plan is made once");
  plan_ = &plan;
  if (auto used = device_->use(); !used) return used;
  const size_t library_bytes = plan.gpu.library == nullptr ? 0 : kGpuLibraryBytes;
  auto library = platform_.open_matrix_library(device_->index(), {plan.gpu.library, library_bytes});
  if (!library) return std::unexpected(library.error());
  library_ = std::move(*library);
  program_ = std::make_unique<GpuProgram>(plan, platform_, *library_,
                                          peers_.failure == nullptr ? nullptr : &peers_);
  if (auto prepared = program_->prepare(stream_->handle()); !prepared) return prepared;
  if (auto waited = wait(); !waited) return waited;
  if (auto filled = fill_constants(); !filled) return filled;
  return among_processors_ ? Result<void>() : record();
}

Result<void> GpuRank::fill_constants() {
  const std::vector<double>* frequencies = rotary_frequencies(*plan_);
  if (frequencies == nullptr) return {};
  const size_t bytes = frequencies->size() * sizeof(double);
  std::memcpy(staging_.data(), frequencies->data(), bytes);
  auto copied = stream_->copy(plan_->gpu.frequencies, staging_.data(), bytes);
  return copied ? wait() : copied;
}

// A rank that waits for another in vain says so in its word, and goes on.
Result<void> GpuRank::wait() {
  if (auto waited = stream_->wait(kPassDeadline); !waited) {
    // Closing the library would wait for a GPU that may never answer: it ends with the process.
    library_is_lost_ = true;
    return waited;
  }
  if (auto state = library_->state(); !state) return state;
  if (peers_.failure == nullptr) return {};
  const auto missing = missing_rank(std::atomic_ref(*peers_.failure).load());
  if (!missing) return {};
  return machine_refused(
      "gpu{}: rank {} did not come to a sum in time; its GPU is lost or far behind",
      device_->index(), *missing);
}

Result<void> GpuRank::record() {
  const auto sequences =
      static_cast<uint32_t>(std::min(plan_->gpu.limits.sequences, plan_->batch_tokens));
  const auto units = static_cast<uint32_t>(plan_->attention_blocks);
  for (const GpuPassShape& shape : generation_shapes(sequences, units)) {
    if (auto begun = stream_->begin_recording(); !begun) return begun;
    program_->enqueue(stream_->handle(), shape);
    auto recording = stream_->end_recording();
    if (!recording) return std::unexpected(recording.error());
    recordings_.emplace(shape, std::move(*recording));
  }
  return {};
}

// Returns how many bytes of the staging are to be copied.
size_t GpuRank::write_batch(const Batch& batch) {
  GpuBatchWriter writer(staging_.data(), plan_->gpu.limits);
  for (const std::span<const uint32_t> pages : batch.page_tables) writer.add_sequence(pages);
  auto wanted = batch.logit_tokens.begin();
  for (size_t index = 0; index < batch.tokens.size(); ++index) {
    const BatchToken& token = batch.tokens[index];
    const auto id = static_cast<uint32_t>(token.token);
    if (index < batch.generated_tokens) {
      writer.add_generated(id, token.position, token.sequence);
    } else {
      writer.add_prompted(id, token.position, token.sequence);
    }
    if (wanted == batch.logit_tokens.end() || *wanted != index) continue;
    writer.want_logits();
    ++wanted;
  }
  writer.end();
  shape_ = round_up_shape(*writer.batch().counts);
  return writer.used_bytes();
}

Result<void> GpuRank::begin(const Batch& batch) {
  if (auto used = device_->use(); !used) return used;
  const size_t bytes = write_batch(batch);
  return stream_->copy(plan_->gpu.batch, staging_.data(), bytes);
}

Result<void> GpuRank::run_steps(Range steps) {
  program_->enqueue(stream_->handle(), shape_, steps);
  return wait();
}

Result<void> GpuRank::run(const Batch& batch) {
  if (auto begun = begin(batch); !begun) return begun;
  if (const auto recorded = recordings_.find(shape_); recorded != recordings_.end()) {
    if (auto played = stream_->play(*recorded->second); !played) return played;
  } else {
    program_->enqueue(stream_->handle(), shape_);
  }
  return wait();
}

Result<void> GpuRank::read(const float* from, std::span<float> to) {
  CHECK(to.size_bytes() <= staging_.size_bytes(), "{} floats are read at once", to.size());
  if (auto used = device_->use(); !used) return used;
  auto copied = stream_->copy(staging_.data(), from, to.size_bytes());
  if (!copied) return copied;
  if (auto waited = wait(); !waited) return waited;
  std::memcpy(to.data(), staging_.data(), to.size_bytes());
  return {};
}

}  // namespace lockstep
