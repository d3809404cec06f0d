"""Torchrun, with an exit status that says how the first of its ranks ended: `python -m services.worker.training.ranks
OPTIONS -m MODULE ARGUMENTS`, as `python -m torch.distributed.run`.

A rank's own status, or 128 and the signal that ended it; torchrun alone ends with 1 whatever it was.
"""

import signal
import sys
import traceback

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(arguments: list[str]) -> int:
    """Run the ranks to their end; returns the exit status."""
    try:
        torchrun.main(arguments)
    except ChildFailedError as error:
        traceback.print_exc()
        codes = [failure.exitcode for failure in error.failures.values()]
        if -signal.SIGKILL in codes:  # torchrun ends the other ranks later, so nobody else of this run did it
            return 128 + signal.SIGKILL
        _, first = error.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
