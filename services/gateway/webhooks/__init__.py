"""Webhooks: who is told of a job's end, the deliveries, and what sends them."""
