# Configuring and building, sourced by scripts/run and scripts/test, which set `root`.

# With ccache, a clone in another folder finds what was compiled in this one.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1

# configure PRESET [cmake options...]
configure() {
  local preset=$1
  shift
  local launcher=()
  if command -v ccache > /dev/null; then
    launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    [[ $preset != cuda ]] || launcher+=(-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  fi
  (cd "$root" && cmake --preset "$preset" --log-level=WARNING "${launcher[@]}" "$@")
}

# build PRESET TARGET
build() {
  cmake --build "$root/build/$1" --target "$2"
}
