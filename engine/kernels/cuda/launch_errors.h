// Which errors of a launch are this program's own mistakes. Made for nvcc as well: C++20, and no
// header of CUDA's, so that it can be tested where there is none.
#pragma once

namespace lockstep {

// `error`: a cudaError_t, by its number in CUDA's driver_types.h. True: the launch is refused for
// itself, would be again, and nothing else is told of it: its kernel would be missing without a
// word. Any other error may be the GPU's, or that of whatever ran before on it.
constexpr bool is_launchs_own(int error) {
  switch (error) {
    case 1:    // InvalidValue
    case 9:    // InvalidConfiguration
    case 13:   // InvalidSymbol
    case 52:   // MissingConfiguration
    case 98:   // InvalidDeviceFunction
    case 200:  // InvalidKernelImage
    case 209:  // NoKernelImageForDevice
    case 218:  // InvalidPtx
    case 221:  // JitCompilerNotFound
    case 222:  // UnsupportedPtxVersion
    case 223:  // JitCompilationDisabled
    case 400:  // InvalidResourceHandle
    case 500:  // SymbolNotFound
    case 701:  // LaunchOutOfResources
    case 720:  // CooperativeLaunchTooLarge
    case 912:  // InvalidClusterSize
    case 913:  // FunctionNotLoaded
      return true;
    default:
      return false;
  }
}

}  // namespace lockstep
