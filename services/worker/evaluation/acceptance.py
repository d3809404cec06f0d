"""Acceptance in vLLM, from differences of its counters before and after a set of prompts."""

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from shared.errors import VerifierError
from shared.schemas.spec import SamplingSpec

DRAFTS = "vllm:spec_decode_num_drafts"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
ACCEPTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True)
class Counters:
    """vLLM's speculative-decoding counters at one moment."""

    drafts: float
    draft_tokens: float
    accepted: float
    per_position: dict[int, float]


def acceptance(before: Counters, after: Counters, k: int) -> dict[str, Any]:
    """Acceptance between two readings.

    Args:
        k: number of speculative tokens.

    Returns:
        `acceptance_length` = 1 + accepted / drafts (the bonus token counts, so it lies in [1, k + 1]; None without
        drafts), `per_position` (share of drafts whose token at each position was accepted), and the counts.
    """
    drafts = after.drafts - before.drafts
    accepted = after.accepted - before.accepted
    positions = [after.per_position.get(i, 0.0) - before.per_position.get(i, 0.0) for i in range(k)]
    return {
        "acceptance_length": 1 + accepted / drafts if drafts else None,
        "per_position": [position / drafts if drafts else None for position in positions],
        "drafts": int(drafts),
        "draft_tokens": int(after.draft_tokens - before.draft_tokens),
        "accepted_tokens": int(accepted),
    }


def parse_counters(metrics: str) -> Counters:
    """Read the counters from a Prometheus text page, summed over engines."""
    totals = {DRAFTS: 0.0, DRAFT_TOKENS: 0.0, ACCEPTED: 0.0}
    per_position: dict[int, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            name = sample.name.removesuffix("_total")
            if name in totals and not sample.name.endswith("_created"):
                totals[name] += sample.value
            elif name == ACCEPTED_PER_POSITION and "position" in sample.labels:
                position = int(sample.labels["position"])
                per_position[position] = per_position.get(position, 0.0) + sample.value
    return Counters(totals[DRAFTS], totals[DRAFT_TOKENS], totals[ACCEPTED], per_position)


async def read_counters(http: httpx.AsyncClient) -> Counters:
    """Read the counters of a running vLLM."""
    response = await http.get("/metrics")
    if not response.is_success:
        raise VerifierError(f"/metrics answered {response.status_code}", where=str(http.base_url))
    return parse_counters(response.text)


async def settled_counters(http: httpx.AsyncClient, poll_s: float = 0.5, readings: int = 3) -> Counters:
    """Read the counters once they stand still: vLLM publishes them a moment after it has answered."""
    same, last = 0, await read_counters(http)
    while same < readings:
        await asyncio.sleep(poll_s)
        current = await read_counters(http)
        same, last = (same + 1, current) if current == last else (0, current)
    return last


def evaluation_sampling(base: SamplingSpec, temperature: float, max_tokens: int | None) -> SamplingSpec:
    """The job's sampling at evaluation's own temperature and answer length."""
    return base.model_copy(
        update={
            "temperature": temperature,
            "top_p": 1.0 if temperature == 0 else base.top_p,
            "max_tokens": max_tokens or base.max_tokens,
        }
    )
