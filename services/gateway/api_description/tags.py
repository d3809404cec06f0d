"""The parts of the API, in the order in which the document shows them."""

TAGS = {
    "jobs": "A job trains one draft: it generates, captures, trains, evaluates and publishes. Its document says how.",
    "datasets": "What jobs train on: prompts, conversations, ready-made rows, vocabularies. A dataset never changes.",
    "drafts": "The registry of published drafts: their evaluation, lineage, tags and files.",
    "artifacts": "Files that the stages of a job have left, by range and by hash.",
    "rows": "The rows that a job trains on, token by token, with the loss mask.",
    "fleet": "Workers, their GPUs, and the verifiers that are served.",
    "presets": "Documents that fill what a job document leaves out.",
    "webhooks": "Messages to other services when jobs end, signed and tried again.",
    "retention": "Removing what nothing refers to any more.",
    "api keys": "Who may use the API.",
    "health": "Whether the service lives, whether it can work, and its figures.",
}
