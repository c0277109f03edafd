// Invariant: a rank may be computed by another process: the same bits as by one rank (gather).
#include "tests/engine/runtime/socket_rank.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/rank_answers.h"

namespace lockstep {
namespace {

// The model of two ranks, of which this process computes `own`.
LoadedModelOptions half_of(size_t own, const std::vector<double>& shares, int socket) {
  return {.shares = shares,
          .elsewhere = [own, socket](size_t rank, const RankPlace& place,
                                     bool crowded) -> Result<std::unique_ptr<Rank>> {
            if (rank == own) return nullptr;
            return SocketRank::start(rank, place, crowded, socket);
          }};
}

Answers answers_of_one_rank(const std::string& path) {
  LoadedModel whole(path, {});
  return compute_answers(whole);
}

// Computes rank 1 until the other process has all of its answers. 0: it did.
int compute_rank_1(const std::string& path, const std::vector<double>& shares, int socket) {
  try {
    LoadedModel half(path, half_of(1, shares, socket));
    compute_answers(half);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

void check(const std::string& path, const std::vector<double>& shares) {
  const Answers expected = answers_of_one_rank(path);  // its threads have ended before the fork
  std::array<int, 2> sockets = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(sockets[0]);
    _exit(compute_rank_1(path, shares, sockets[1]));
  }
  close(sockets[1]);
  {
    LoadedModel half(path, half_of(0, shares, sockets[0]));
    const Answers found = compute_answers(half);
    expect_same_bits(found.prompt, expected.prompt);
    expect_same_bits(found.generated, expected.generated);
    expect_same_bits(found.among_others, expected.among_others);
    EXPECT_GT(dynamic_cast<const SocketRank&>(half.ranks()[1]).sent_bytes(), 0U);
  }
  close(sockets[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(SocketRank, another_process_computes_a_rank_with_the_same_bits) {
  const RandomModel dense(Format::kQ8_0, Format::kF16, /*seed=*/23);
  check(dense.path(), {1, 1});
  check(dense.path(), {3, 1});
  check(dense.path(), {1, 3});
}

TEST(SocketRank, of_a_mixture_as_well) {
  const RandomModel mixture(Format::kQ4_0, Format::kQ8_0, /*seed=*/23, {.count = 6, .used = 2});
  check(mixture.path(), {1, 1});
}

}  // namespace
}  // namespace lockstep
