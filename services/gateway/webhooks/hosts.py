"""The hosts that webhooks may go to: `EYRIE_WEBHOOK_HOSTS`. Nothing else in the network is reached through them."""

from dataclasses import dataclass

import httpx

from shared.errors import UserError

VARIABLE = "EYRIE_WEBHOOK_HOSTS"
PORTS = {"http": 80, "https": 443}
OFF = f"webhooks are off: {VARIABLE} names no host that they may go to"


@dataclass(frozen=True)
class AllowedHosts:
    """Names and addresses as they are listed: a name stands for no other name, an address for no name.

    Attributes:
        places: host and port; no port stands for those of http and https.
    """

    places: frozenset[tuple[str, int | None]]

    @classmethod
    def parse(cls, text: str) -> "AllowedHosts":
        """Read a list with commas.

        Raises:
            UserError: an entry is neither `host` nor `host:port`.
        """
        entries = [entry.strip() for entry in text.split(",") if entry.strip()]
        return cls(frozenset(_place(entry) for entry in entries))

    def problem(self, url: str) -> str | None:
        """What keeps a webhook from going to `url`, if anything."""
        if not self.places:
            return OFF
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, ValueError, TypeError):
            return "this is not a URL"
        if parsed.scheme not in PORTS or not parsed.host:
            return "a webhook's URL begins with http:// or https:// and names a host"
        if parsed.userinfo:
            return "a user name or password does not belong into the URL: what is sent is signed"
        port = PORTS[parsed.scheme] if parsed.port is None else parsed.port
        host = _host(parsed)
        if (host, port) in self.places or ((host, None) in self.places and port == PORTS[parsed.scheme]):
            return None
        return f"{host}:{port} is not among the hosts that webhooks may go to ({VARIABLE})"


def _place(entry: str) -> tuple[str, int | None]:
    name, colon, digits = entry.rpartition(":")
    has_port = bool(colon) and digits.isascii() and digits.isdigit() and not (":" in name and not name.endswith("]"))
    host, port = (name, int(digits)) if has_port else (entry, None)
    try:
        parsed = httpx.URL(f"http://{host}/")
        plain = parsed.port is None and parsed.path == "/" and not parsed.userinfo and not parsed.query
        wrong = not (plain and parsed.host) or (port is not None and not 0 < port < 65536)
    except (httpx.InvalidURL, ValueError):
        wrong = True
    if wrong or any(letter in "*/\\%" or letter.isspace() for letter in host):
        raise UserError(f"{entry!r} is neither a host nor host:port", where=VARIABLE, hint="hooks.example.org,ci:8080")
    return _host(parsed), port


def _host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").lower()
