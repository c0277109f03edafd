# The daemon as an image: the program, the libraries it loads, and nothing else; no shell.
#
#   docker build -t lockstepd .
#   docker run --read-only --cap-drop ALL --security-opt no-new-privileges \
#     --security-opt seccomp=deploy/docker/seccomp.json \
#     -v /var/lib/models:/models:ro -p 127.0.0.1:8080:8080 lockstepd --model /models/model.gguf
#
# deploy/README.md says what each of these is for; deploy/compose.yaml has them all.
#
# The target gpu computes on NVIDIA's GPUs as well:
#
#   docker build --target gpu --build-arg CUDA_BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 \
#     -t lockstepd-gpu .
ARG BASE=debian:bookworm-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251
# An image that has the CUDA toolkit, 13.0 or newer, in /usr/local/cuda-*.
ARG CUDA_BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04@sha256:7d2f6a8c2071d911524f95061a0db363e24d27aa51ec831fcccf9e76eb72bc92
# The time that the image's list of what is in it bears, in seconds since 1970 (the commit's).
ARG SOURCE_DATE_EPOCH

FROM ${BASE} AS source
WORKDIR /source
# The packages first: they change less often than the code.
COPY scripts/packages.sh scripts/setup scripts/
RUN scripts/setup --image
COPY . .
# A compiler cache helps where one is mounted at /root/.cache/ccache.
ENV CCACHE_BASEDIR=/source CCACHE_NOHASHDIR=1

FROM source AS build
RUN cmake --preset release -DLOCKSTEP_TESTS=OFF -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
      --log-level=WARNING \
 && cmake --build build/release --target lockstepd \
 && strip build/release/lockstepd
ARG SOURCE_DATE_EPOCH
# For KV events, loaded where they are asked for.
RUN deploy/docker/collect-image build/release/lockstepd LICENSE /image \
      /lib/x86_64-linux-gnu/libzmq.so.5

FROM ${CUDA_BASE} AS cuda

FROM source AS build-gpu
COPY --from=cuda /usr/local/ /usr/local/
COPY --from=cuda /usr/share/doc/ /usr/local/share/doc/
# Without NCCL, which is larger than the rest: GPUs have to reach one another's memory. The driver's
# libraries come from the host.
RUN ln -sfn "$(ls -d /usr/local/cuda-*.* | sort --version-sort | tail -n 1)" /usr/local/cuda \
 && cmake --preset cuda -DLOCKSTEP_TESTS=OFF -DLOCKSTEP_NCCL=OFF \
      -DCMAKE_CXX_COMPILER_LAUNCHER=ccache --log-level=WARNING \
 && cmake --build build/cuda --target lockstepd \
 && strip build/cuda/lockstepd
ARG SOURCE_DATE_EPOCH
# The first is loaded where GPUs are chosen, the second for KV events; the others are what the driver's
# libraries ask for.
RUN deploy/docker/collect-image build/cuda/lockstepd LICENSE /image \
      /usr/local/cuda/lib64/libcublasLt.so.13 /lib/x86_64-linux-gnu/libzmq.so.5 \
      /lib/x86_64-linux-gnu/libdl.so.2 /lib/x86_64-linux-gnu/libpthread.so.0 \
      /lib/x86_64-linux-gnu/librt.so.1

FROM scratch AS image
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lockstepd" \
      org.opencontainers.image.description="Serves GGUF language models over an OpenAI-style API" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The port is open to the container alone until it is published.
ENV LOCKSTEP_HOST=0.0.0.0 \
    LOCKSTEP_PORT=8080
EXPOSE 8080
WORKDIR /models
USER 10001:10001
STOPSIGNAL SIGTERM
# Not healthy while it loads: the start period is the time that a large model may take.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m --retries=3 \
  CMD ["/usr/local/bin/lockstepd", "check-health"]
ENTRYPOINT ["/usr/local/bin/lockstepd"]
CMD ["serve"]

FROM image AS gpu
COPY --from=build-gpu /image/ /
# What NVIDIA's container toolkit is asked for, and where it puts the driver's libraries.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/usr/lib64

# The last one is built where none is named.
FROM image
COPY --from=build /image/ /
