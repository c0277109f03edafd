# What a build for NVIDIA's GPUs needs beside the rest (LOCKSTEP_CUDA=ON). Files that it compiles are
# named by lockstep_cuda_choice() where they lie.
set(LOCKSTEP_CUDA_REMEDY "Install NVIDIA's CUDA toolkit, 13.0 or newer, and give its compiler as \
-DCMAKE_CUDA_COMPILER=/path/to/bin/nvcc or in PATH; or build without GPUs: -DLOCKSTEP_CUDA=OFF, \
as the other presets do.")

if(LOCKSTEP_SANITIZE OR LOCKSTEP_FUZZ)
  message(FATAL_ERROR "LOCKSTEP_CUDA=ON does not go with sanitizers and fuzz targets: they cannot "
    "see into device code. Build those with -DLOCKSTEP_CUDA=OFF.")
endif()

# An environment's CUDACXX is respected, as CMake does it by itself.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(LOCKSTEP_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
    PATH_SUFFIXES bin)
  if(NOT LOCKSTEP_NVCC)
    message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but there is no nvcc. ${LOCKSTEP_CUDA_REMEDY}")
  endif()
  set(CMAKE_CUDA_COMPILER ${LOCKSTEP_NVCC})
endif()
if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
# Machine code for each generation (A100, L4 and RTX 40, H100 and H200, B200, RTX 50), and for later
# ones what the driver translates. 90a: with the instructions that only Hopper has.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;89-real;90a-real;100-real;120-real;120-virtual")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is CUDA ${CMAKE_CUDA_COMPILER_VERSION}. "
    "${LOCKSTEP_CUDA_REMEDY}")
endif()
find_package(CUDAToolkit)
if(NOT TARGET CUDA::cudart_static)
  message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but the CUDA runtime (libcudart_static.a) was not found "
    "beside ${CMAKE_CUDA_COMPILER}. ${LOCKSTEP_CUDA_REMEDY}")
endif()
# Its header alone: the library is loaded where GPUs are used (cublas_lt.h).
find_path(LOCKSTEP_CUBLAS_LT_FOLDER cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NOT LOCKSTEP_CUBLAS_LT_FOLDER)
  message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but the header of cuBLASLt (cublasLt.h), which computes "
    "prompts, was not found beside ${CMAKE_CUDA_COMPILER}. ${LOCKSTEP_CUDA_REMEDY}")
endif()

# nvcc knows C++20 at most, so a .cu file includes no header of ours that needs C++23.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know yet that it does
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)

# The same host code as everywhere. Contraction on the device is each kernel's own business.
# Index functions are constexpr, and so both the host's and the device's. Lines of the device's code
# are kept for NVIDIA's sanitizer and profilers, at no cost in time.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Xcompiler=-march=x86-64-v2,-ffp-contract=off>")
# -Wconversion is left out: what nvcc writes for the host does not keep to it.
target_compile_options(lockstep_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Wshadow,-Werror>")
