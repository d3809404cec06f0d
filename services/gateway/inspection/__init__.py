"""Inspection: a dry run of a dataset, which shows what a job would keep, refuse and learn, without starting one."""
