# Debian's Redis on the base image, where the official image cannot be had: EYRIE_REDIS_IMAGE in .env names it then.
#     docker build -f docker/redis.Dockerfile -t eyrie-redis .
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE}
# The uid is that of the official image, which compose.yaml names. The version of Redis is the base image's choice.
# hadolint ignore=DL3008
RUN command -v redis-server >/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*; }
RUN mkdir -p /data && chown 999:999 /data && chmod 700 /data
USER 999:999
WORKDIR /data
EXPOSE 6379
HEALTHCHECK --interval=5s --timeout=5s --retries=10 CMD ["redis-cli", "ping"]
LABEL org.opencontainers.image.title="eyrie-redis" \
      org.opencontainers.image.description="Debian's Redis server" \
      org.opencontainers.image.licenses="BSD-3-Clause"
ENTRYPOINT []
CMD ["redis-server"]
