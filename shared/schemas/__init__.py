"""Typed documents that cross a process boundary: job documents, job records, manifests."""
