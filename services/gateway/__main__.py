"""Runs the gateway: `python -m services.gateway` (settings come from EYRIE_... variables)."""

import logging

import uvicorn

from services.gateway.app import create_app
from shared.settings import get_settings


def main() -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = get_settings()
    uvicorn.run(
        create_app(settings),
        host=settings.gateway_host,
        port=settings.gateway_port,
        server_header=False,
        timeout_graceful_shutdown=10,
    )


if __name__ == "__main__":
    main()
