# The verifier: vLLM that keeps hidden states. DEVICE=cpu takes vLLM's build for CPUs, DEVICE=gpu its CUDA build of the
# same version. The steps down to `packages` are those of worker.Dockerfile, so that both images share these layers.
#     docker build -f docker/verifier.Dockerfile .         from the repository's root; docs/compose.md has the arguments
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

FROM packages AS application
COPY pyproject.toml README.md LICENSE NOTICE /build/eyrie/
COPY services /build/eyrie/services
COPY shared /build/eyrie/shared
COPY assets /opt/eyrie/app/assets
COPY docker/http_health.py /opt/eyrie/app/
RUN sh /build/install.sh --application /build/eyrie

FROM runtime
ARG EYRIE_UID=10001
COPY docker/make_user.sh /build/
RUN sh /build/make_user.sh ${EYRIE_UID} /var/lib/eyrie/store /var/lib/eyrie/exchange /run/eyrie/gpus
COPY --from=packages /opt/eyrie/venv /opt/eyrie/venv
COPY --from=application /opt/eyrie/app /opt/eyrie/app
ENV PATH=/opt/eyrie/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/eyrie/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    EYRIE_VERIFIER_HOST=0.0.0.0 \
    EYRIE_VERIFIER_PORT=8000 \
    EYRIE_VERIFIER_SHARED_FOLDER=/var/lib/eyrie/exchange
USER ${EYRIE_UID}:${EYRIE_UID}
WORKDIR /tmp
EXPOSE 8000
# The weights of Kimi-K2.5 take minutes to load: what fails in the first hour does not count.
HEALTHCHECK --interval=10s --timeout=10s --start-period=1h --retries=6 \
    CMD ["python3", "/opt/eyrie/app/http_health.py", "http://127.0.0.1:8000/health"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="eyrie-verifier" \
      org.opencontainers.image.description="vLLM as Eyrie's verifier, with hidden-state capture" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["python3", "-m", "services.verifier"]
