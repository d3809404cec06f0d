"""Datasets as they are read: files, rows, conversations; used by the gateway (inspection) and by the worker."""
