"""The gateway: the REST API over job records, datasets and drafts, and the reconciler."""
