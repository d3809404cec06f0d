"""Runs the gateway: `python -m services.gateway` (settings come from EYRIE_... variables)."""

import sys

import uvicorn

from services.gateway.access.binding import require_guarded
from services.gateway.app import create_app
from services.gateway.deps import Backend
from shared.errors import EyrieError
from shared.logs import set_up_logging
from shared.settings import get_settings

BAD_SETTINGS = 2


def main() -> int:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    try:
        settings = get_settings()
        set_up_logging("gateway", settings.log_format)
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
        log_config=None,  # without one of its own, uvicorn's lines go where all others do, and show as little
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
