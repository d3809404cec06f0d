"""Asks a service of its own container whether it is well: `python3 http_health.py URL`. Exit code 0: it said so."""

import sys
import urllib.error
import urllib.request

TIMEOUT_S = 8.0


def main(url: str) -> int:
    """Ask once, past any proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            print(answer.status)
        return 0
    except urllib.error.HTTPError as error:
        print(f"{error.code}: {error.read(500).decode(errors='replace')}")
    except OSError as error:
        print(error)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
