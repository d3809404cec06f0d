"""`eyrie doctor`: what this machine can do, what is wrong, and what to do about it."""
