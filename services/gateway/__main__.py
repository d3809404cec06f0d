"""Runs the gateway: `python -m services.gateway` (settings come from EYRIE_... variables)."""

import logging
import sys

import uvicorn

from services.gateway.access.binding import require_guarded
from services.gateway.app import create_app
from services.gateway.deps import Backend
from shared.errors import EyrieError
from shared.settings import get_settings

BAD_SETTINGS = 2


def main() -> int:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = get_settings()
        app = create_app(settings)
        backend: Backend = app.state.backend
        require_guarded(settings.gateway_host, needed=backend.keys_needed, insecure=settings.insecure_no_api_key)
    except EyrieError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_SETTINGS
    uvicorn.run(
        app,
        host=settings.gateway_host,
        port=settings.gateway_port,
        server_header=False,
        timeout_graceful_shutdown=10,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
