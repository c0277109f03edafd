#include "engine/kernels/cuda/launch_errors.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// After which CUDA 13's driver_types.h has the process ended, or which are the GPU's: what waits
// for the stream is told, and requests are.
TEST(LaunchErrors, what_is_a_gpus_end_is_not_the_launchs_own) {
  constexpr int kTerminal[] = {
      46,   // DevicesUnavailable
      214,  // ECCUncorrectable
      220,  // NvlinkUncorrectable
      226,  // Contained
      700,  // IllegalAddress
      702,  // LaunchTimeout
      709,  // ContextIsDestroyed
      710,  // Assert
      714,  // HardwareStackError
      715,  // IllegalInstruction
      716,  // MisalignedAddress
      717,  // InvalidAddressSpace
      718,  // InvalidPc
      719,  // LaunchFailure
      721,  // TensorMemoryLeak
      805,  // MpsConnectionFailed
      806,  // MpsRpcFailure
      810,  // MpsClientTerminated
      911,  // ExternalDevice
      999,  // Unknown
  };
  for (const int error : kTerminal) EXPECT_FALSE(is_launchs_own(error)) << error;
  EXPECT_FALSE(is_launchs_own(12345)) << "a later CUDA's";
}

TEST(LaunchErrors, what_would_be_refused_again_is_the_launchs_own) {
  constexpr int kOwn[] = {1, 9, 98, 200, 209, 400, 701};
  for (const int error : kOwn) EXPECT_TRUE(is_launchs_own(error)) << error;
}

}  // namespace
}  // namespace lockstep
