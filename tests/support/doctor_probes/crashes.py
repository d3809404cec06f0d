"""Ends before it answers."""

import sys

sys.exit("libcuda.so.1 is of another version")
