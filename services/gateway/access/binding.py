"""Whether a gateway may listen where it is told to: beyond this machine only with a key, or when that is asked for."""

import logging

from services.gateway.access.guard import is_loopback
from shared.errors import UserError

log = logging.getLogger(__name__)


def require_guarded(host: str, *, needed: bool, insecure: bool) -> None:
    """Refuse to answer everybody without a key.

    Args:
        host: the address to listen at.
        needed: whether requests need a key.
        insecure: `EYRIE_INSECURE_NO_API_KEY`.

    Raises:
        UserError: there is no key, and others could reach the gateway.
    """
    if needed:
        return
    if host == "localhost" or is_loopback(host):
        log.warning("no API key is set: this gateway answers whoever can reach %s on this machine", host)
    elif insecure:
        log.warning("EYRIE_INSECURE_NO_API_KEY is set: this gateway answers whoever reaches %s", host)
    else:
        raise UserError(
            "a gateway that other machines can reach needs an API key",
            where=f"EYRIE_GATEWAY_HOST={host}",
            hint="set EYRIE_API_KEY_FILE to a file with a key (openssl rand -base64 32), or "
            "EYRIE_INSECURE_NO_API_KEY=1 where only friends can reach it",
        )
