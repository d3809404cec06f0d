"""The worker: takes jobs from RQ and runs their stages as supervised child processes."""
