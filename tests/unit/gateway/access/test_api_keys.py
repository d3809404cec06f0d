"""API keys without a gateway: what is kept, what is compared, what the first one's file may hold."""

from pathlib import Path

import pytest

from services.gateway.access.api_keys import KNOWN_FOR_S, ApiKeys, read_first_key
from services.gateway.access.binding import require_guarded
from shared.artifact_store import LocalArtifactStore
from shared.errors import UserError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_stored_hashed_and_shown_once(tmp_path: Path) -> None:
    keys = ApiKeys(LocalArtifactStore(tmp_path), None)
    made = keys.create("ci")
    assert made.key.startswith("eyk_")
    assert len(made.key) >= 4 + 43  # 256 bits
    assert keys.find(made.key) == made.id
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert made.key.encode() not in kept
    assert made.key[4:].encode() not in kept
    assert made.key not in str([view.model_dump() for view in keys.views()])


def test_another_gateway_knows_new_and_deleted_keys_within_seconds(tmp_path: Path) -> None:
    clock = Clock()
    here = ApiKeys(LocalArtifactStore(tmp_path), None)
    there = ApiKeys(LocalArtifactStore(tmp_path), None, clock)
    assert there.find("nothing") is None
    made = here.create(None)
    clock.now += KNOWN_FOR_S
    assert there.find(made.key) == made.id
    assert here.delete(made.id)
    assert here.find(made.key) is None
    clock.now += KNOWN_FOR_S
    assert there.find(made.key) is None
    assert not here.delete(made.id)


def test_a_store_that_is_away_locks_nobody_out_and_lets_nobody_in(tmp_path: Path) -> None:
    clock, root = Clock(), tmp_path / "store"
    keys = ApiKeys(LocalArtifactStore(root), None, clock)
    made = keys.create(None)
    assert keys.find(made.key)
    (root / "api-keys").rename(tmp_path / "away")
    (root / "api-keys").symlink_to(root / "api-keys")  # whoever lists it gets an OSError
    clock.now += KNOWN_FOR_S
    assert keys.find(made.key)
    assert keys.find("another") is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has 0 characters"),
        (b"short\n", "has 5 characters"),
        (b"two words of a long key", "no spaces"),
        ("schlüssel-schlüssel".encode(), "printable ASCII"),
        (b"0123456789\x000123456789", "printable ASCII"),
    ],
)
def test_a_file_without_a_key_is_refused_with_a_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        read_first_key(file)
    assert "EYRIE_API_KEY_FILE" in str(caught.value)
    assert "openssl" in str(caught.value)


def test_a_missing_file_is_refused_and_white_space_is_trimmed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_first_key(tmp_path / "none")
    with pytest.raises(UserError, match="Is a directory"):
        read_first_key(tmp_path)
    (tmp_path / "key").write_text("\n 0123456789abcdef \r\n")
    assert read_first_key(tmp_path / "key") == "0123456789abcdef"
    assert read_first_key(None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway", ""])
def test_beyond_loopback_a_key_is_needed(host: str) -> None:
    with pytest.raises(UserError, match="needs an API key"):
        require_guarded(host, needed=False, insecure=False)
    require_guarded(host, needed=True, insecure=False)
    require_guarded(host, needed=False, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_on_loopback_a_key_may_be_left_out(host: str) -> None:
    require_guarded(host, needed=False, insecure=False)
