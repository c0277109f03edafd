# The Debian packages that Lockstep needs, sourced by scripts/setup. One per line, with the reason
# where the name does not say it.

build_packages=(
  build-essential
  ca-certificates
  ccache                 # a second build after a change takes seconds
  cmake
  libcli11-dev           # command line
  libfmt-dev             # text formatting (std::format is not in GCC 12)
  libnuma-dev            # which memory a page lies in, and where it shall
  libopenmpi-dev         # exchanges between hosts; its headers alone, the library is opened if there
  libpcre2-dev           # pre-tokenizer patterns
  libspdlog-dev          # log
  libssl-dev             # TLS, the hashes of API keys and of what is kept over a restart
  libucx-dev             # exchanges between hosts; its headers alone, the library is opened if there
  liburing-dev           # direct reads of model files
  libzmq3-dev            # KV events to routers
  ninja-build
  nlohmann-json3-dev
  pkg-config
  prometheus-cpp-dev     # metrics registry and text serializer
  xz-utils               # unpacks a fetched dependency
)

# To list what is in the image; where that is collected, not in it.
image_packages=(
  python3
)

test_packages=(
  chromium               # the page at / is tested in it
  clang-format-14        # the tree is checked to be formatted
  clang-19               # second compiler, and libFuzzer
  clang-tidy-19          # looks at the files that have changed
  curl
  libbenchmark-dev
  libclang-rt-19-dev
  libgmock-dev
  libgtest-dev
  llvm-19                # its symbolizer: sanitizers' reports and suppressions name functions
  openmpi-bin            # mpirun, which starts hosts that exchange by MPI
  python3
  python3-venv
  strace                 # that workers make no system call
  systemd                # systemd-analyze, which checks the units in deploy/systemd
)
