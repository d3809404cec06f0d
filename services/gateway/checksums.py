"""The checksum that a sender announces of an upload, in any of three ways, and whether it is that of what arrived."""

import base64
import binascii
import re
from dataclasses import dataclass

from services.gateway.problems import Problem

MEMBER = re.compile(r"\s*sha-256=:([A-Za-z0-9+/=]+):\s*")


@dataclass(frozen=True)
class Checksum:
    """A SHA-256 (hex) that was announced, and where in the request."""

    sha256: str
    source: str
    pointer: str

    def require(self, arrived: str) -> None:
        """Make sure that what arrived is what was sent.

        Raises:
            Problem: 422.
        """
        if self.sha256.lower() == arrived:
            return
        raise Problem(
            422,
            f"what arrived has SHA-256 {arrived}, not the one that was announced; send it again",
            errors=[{"source": self.source, "pointer": self.pointer, "message": "does not match the body"}],
        )


def announced_checksum(content_digest: str | None, x_sha256: str | None, query: str | None) -> Checksum | None:
    """What the sender announced; None where that is nothing.

    Args:
        content_digest: the header of RFC 9530, `sha-256=:BASE64:`; other algorithms beside it are passed over.
        x_sha256, query: in hexadecimal.

    Raises:
        Problem: 422, the header cannot be read, or two of them differ.
    """
    found = [
        *([Checksum(_read_digest(content_digest), "header", "/Content-Digest")] if content_digest is not None else []),
        *([Checksum(x_sha256.lower(), "header", "/X-Content-SHA256")] if x_sha256 else []),
        *([Checksum(query.lower(), "query", "/sha256")] if query else []),
    ]
    if len({checksum.sha256 for checksum in found}) > 1:
        raise _refused(found[1], "is another checksum than the one beside it")
    return found[0] if found else None


def _read_digest(header: str) -> str:
    for member in header.split(","):
        found = MEMBER.fullmatch(member)
        if found is None:
            continue
        try:
            digest = base64.b64decode(found[1], validate=True)
        except binascii.Error:
            break
        if len(digest) == 32:
            return digest.hex()
    raise _refused(Checksum("", "header", "/Content-Digest"), "must be sha-256=:BASE64: with the body's SHA-256")


def _refused(checksum: Checksum, message: str) -> Problem:
    field = {"source": checksum.source, "pointer": checksum.pointer, "message": message}
    return Problem(422, f"{checksum.pointer.removeprefix('/')} {message}", errors=[field])
