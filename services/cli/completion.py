"""Ids for shell completion, asked of the gateway: quickly, and without a word where that fails."""

import os
from collections.abc import Callable

import typer

from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject

WAIT_S = 1.0
MOST = 100

Suggestions = list[tuple[str, str]]


def jobs(ctx: typer.Context, incomplete: str) -> Suggestions:
    """Newest jobs, each with its status and name."""
    return _suggest(ctx, incomplete, "/v1/jobs", lambda job: f"{job['status']} {job['name'] or ''}".strip())


def datasets(ctx: typer.Context, incomplete: str) -> Suggestions:
    """Newest datasets, each with its name."""
    return _suggest(ctx, incomplete, "/v1/datasets", lambda dataset: str(dataset["name"]))


def drafts(ctx: typer.Context, incomplete: str) -> Suggestions:
    """Newest drafts, each with its gate and tags; and the tags themselves."""
    found = _ask(ctx, "/v1/drafts")
    tags = [(tag, draft["id"]) for draft in found for tag in draft.get("tags", [])]
    named = [(draft["id"], " ".join([f"gate {draft['gate']}", *draft.get("tags", [])])) for draft in found]
    return _starting(incomplete, named + tags)


def drafts_and_jobs(ctx: typer.Context, incomplete: str) -> Suggestions:
    """What can be downloaded."""
    return ([] if incomplete.startswith("job_") else drafts(ctx, incomplete)) + jobs(ctx, incomplete)


def presets(ctx: typer.Context, incomplete: str) -> Suggestions:
    """Names of presets."""
    return _starting(incomplete, [(preset["name"], "") for preset in _ask(ctx, "/v1/presets")])


def webhooks(ctx: typer.Context, incomplete: str) -> Suggestions:
    """Webhooks, each with its URL."""
    return _suggest(ctx, incomplete, "/v1/webhooks", lambda webhook: str(webhook["url"]))


def fleet(collection: str) -> Callable[[typer.Context, str], Suggestions]:
    """Completes with the ids of `workers`, `gpus` or `verifiers`."""

    def complete(ctx: typer.Context, incomplete: str) -> Suggestions:
        return _suggest(ctx, incomplete, f"/v1/{collection}", lambda item: str(item.get("status") or item.get("host")))

    return complete


def _suggest(ctx: typer.Context, incomplete: str, path: str, words: Callable[[JsonObject], str]) -> Suggestions:
    return _starting(incomplete, [(item["id"], words(item)) for item in _ask(ctx, path)])


def _starting(incomplete: str, found: Suggestions) -> Suggestions:
    return [pair for pair in found if pair[0].startswith(incomplete)]


def _ask(ctx: typer.Context, path: str) -> list[JsonObject]:
    url = ctx.params.get("url") or os.environ.get("EYRIE_URL") or DEFAULT_URL
    try:
        with EyrieClient(url, timeout=WAIT_S) as client:
            return client.first_page(path, MOST)
    except Exception:  # whatever it is: a shell that completes has no place for it
        return []
