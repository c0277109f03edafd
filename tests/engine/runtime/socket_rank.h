// A rank that another process computes: what ranks of this process push to it goes to that process
// over a socket, and what it pushes comes back. Nothing else of the runtime knows of it.
//
// It has copies of the other process' exchange and logits arenas, into which the rank here writes
// as into any rank's. At each barrier over all ranks it sends what has been written to them, and
// what the rank here has changed in its own arenas, so that the other process' copies of those are
// right. Two ranks, under `gather`; both processes compute the same batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/rank.h"

namespace lockstep {

class SocketRank final : public Rank {
 public:
  // `socket`: a stream to the other process' SocketRank, not owned. `rank`: this one's, 0 or 1.
  static Result<std::unique_ptr<Rank>> start(size_t rank, const RankPlace& place, bool crowded,
                                             int socket);

  ArenaAddresses arenas() const override { return host_arenas(); }
  std::unique_ptr<WeightSink> make_weight_sink() override;
  RankNeeds needs() const override { return {}; }
  void begin(const PassInput& input) override;
  Result<void> finish() override;
  Result<HiddenPart> hidden_part(size_t token) override;
  uint64_t host_scratch_bytes() const override { return 0; }

  // Bytes that have gone to the other process.
  size_t sent_bytes() const { return sent_bytes_; }

 private:
  // Bytes here and what the other process knows of them; null: there are none here.
  struct Copy {
    std::byte* bytes = nullptr;
    std::vector<std::byte> known;

    Copy(std::byte* at, size_t count) : bytes(at), known(at, at == nullptr ? at : at + count) {}
    void write(size_t offset, std::span<const std::byte> run);
  };
  // An arena of the other process as the rank here sees it, and the same one of the rank here.
  struct Area {
    Copy mirror;
    Copy local;
  };

  SocketRank(size_t rank, const RankPlace& place, std::unique_ptr<Workers> workers, int socket)
      : Rank(place, std::move(workers)), rank_(rank), socket_(socket) {}
  Result<void> take_memory(ArenaSources sources) override;
  Result<void> prepare() override;
  void walk();
  void send_changes(Copy& copy);
  void receive_changes(Copy& copy);
  void exchange_all();

  size_t rank_;
  int socket_;
  std::function<void(size_t worker)> job_ = [this](size_t) { walk(); };
  Result<void> result_;
  std::vector<Area> areas_;
  size_t sent_bytes_ = 0;
};

}  // namespace lockstep
