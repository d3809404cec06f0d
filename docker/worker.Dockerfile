# The worker: takes jobs, and runs stages and managed verifiers. It holds what the verifier's image holds, and the
# trainer. The steps down to `packages` are those of verifier.Dockerfile, so that both images share these layers.
#     docker build -f docker/worker.Dockerfile .           from the repository's root; docs/compose.md has the arguments
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS runtime
ARG DEVICE=cpu
COPY docker/libraries.sh /build/
RUN sh /build/libraries.sh ${DEVICE}

FROM runtime AS packages
ARG DEVICE=cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN python3 -m venv --without-pip /opt/eyrie/venv
COPY docker/install.sh /build/
COPY locks/torch-cpu.txt locks/images/verifier-${DEVICE}.txt /build/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=build_ca,target=/run/secrets/build_ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    sh /build/install.sh --torch ${DEVICE} /build/verifier-${DEVICE}.txt

FROM packages AS trainer
ARG DEVICE=cpu
COPY locks/images/worker-${DEVICE}.txt /build/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=build_ca,target=/run/secrets/build_ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    sh /build/install.sh --target /opt/eyrie/trainer /build/worker-${DEVICE}.txt

FROM packages AS application
COPY pyproject.toml README.md LICENSE NOTICE /build/eyrie/
COPY services /build/eyrie/services
COPY shared /build/eyrie/shared
COPY assets /opt/eyrie/app/assets
RUN sh /build/install.sh --application /build/eyrie

FROM runtime
ARG EYRIE_UID=10001
COPY docker/make_user.sh /build/
RUN sh /build/make_user.sh ${EYRIE_UID} /var/lib/eyrie/store /var/lib/eyrie/exchange /run/eyrie/gpus
COPY --from=packages /opt/eyrie/venv /opt/eyrie/venv
COPY --from=trainer /opt/eyrie/trainer /opt/eyrie/trainer
COPY --from=application /opt/eyrie/app /opt/eyrie/app
ENV PATH=/opt/eyrie/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/eyrie/app:/opt/eyrie/trainer \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    EYRIE_STORE_ROOT=/var/lib/eyrie/store \
    EYRIE_EXCHANGE_ROOT=/var/lib/eyrie/exchange \
    EYRIE_GPU_LOCK_FOLDER=/run/eyrie/gpus
USER ${EYRIE_UID}:${EYRIE_UID}
WORKDIR /tmp
HEALTHCHECK --interval=20s --timeout=20s --start-period=120s --retries=4 \
    CMD ["python3", "-m", "services.worker.health"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="eyrie-worker" \
      org.opencontainers.image.description="Runs Eyrie's jobs: stages, training, managed verifiers" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["python3", "-m", "services.worker"]
