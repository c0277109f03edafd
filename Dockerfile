# The CPU daemon as an image: the program, the libraries it loads, and nothing else; no shell.
#
#   docker build -t lockstepd .
#   docker run --read-only --cap-drop ALL --security-opt no-new-privileges \
#     --security-opt seccomp=deploy/docker/seccomp.json \
#     -v /var/lib/models:/models:ro -p 127.0.0.1:8080:8080 lockstepd --model /models/model.gguf
#
# deploy/README.md says what each of these is for; deploy/compose.yaml has them all.
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS build
WORKDIR /source
# The packages first: they change less often than the code.
COPY scripts/packages.sh scripts/setup scripts/
RUN scripts/setup
COPY . .
RUN cmake --preset release -DLOCKSTEP_TESTS=OFF --log-level=WARNING \
 && cmake --build build/release --target lockstepd \
 && strip build/release/lockstepd
RUN deploy/docker/collect-image build/release/lockstepd LICENSE /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lockstepd" \
      org.opencontainers.image.description="Serves GGUF language models over an OpenAI-style API" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image/ /
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
