# The gateway: REST API, page, reconciler. Without torch.
#     docker build -f docker/gateway.Dockerfile .          from the repository's root; docs/compose.md has the arguments
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS packages
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN python3 -m venv --without-pip /opt/eyrie/venv
COPY docker/install.sh /build/
COPY locks/images/gateway.txt /build/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=build_ca,target=/run/secrets/build_ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    sh /build/install.sh /build/gateway.txt

FROM packages AS application
COPY pyproject.toml README.md LICENSE NOTICE /build/eyrie/
COPY services /build/eyrie/services
COPY shared /build/eyrie/shared
COPY assets /opt/eyrie/app/assets
COPY docker/http_health.py /opt/eyrie/app/
RUN sh /build/install.sh --application /build/eyrie

FROM ${BASE_IMAGE}
ARG EYRIE_UID=10001
COPY docker/make_user.sh /build/
RUN sh /build/make_user.sh ${EYRIE_UID} /var/lib/eyrie/store /var/lib/eyrie/exchange
COPY --from=packages /opt/eyrie/venv /opt/eyrie/venv
COPY --from=application /opt/eyrie/app /opt/eyrie/app
ENV PATH=/opt/eyrie/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/eyrie/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    EYRIE_GATEWAY_HOST=0.0.0.0 \
    EYRIE_STORE_ROOT=/var/lib/eyrie/store \
    EYRIE_EXCHANGE_ROOT=/var/lib/eyrie/exchange
USER ${EYRIE_UID}:${EYRIE_UID}
WORKDIR /tmp
EXPOSE 8700
HEALTHCHECK --interval=5s --timeout=10s --start-period=120s --retries=6 \
    CMD ["python3", "/opt/eyrie/app/http_health.py", "http://127.0.0.1:8700/readyz"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="eyrie-gateway" \
      org.opencontainers.image.description="Eyrie's REST API, page and reconciler" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["python3", "-m", "services.gateway"]
