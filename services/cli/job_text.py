"""A job as people read it: a heading and a bar a stage, or a line for each thing that happens."""

from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.cli.acceptance import acceptance_table

STYLES = {
    "succeeded": "green",
    "reused": "green",
    "running": "cyan",
    "failed": "bold red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "pausing": "yellow",
    "paused": "yellow",
}
MARKS = {"succeeded": "✔", "reused": "✔", "running": "▶", "failed": "✘", "cancelled": "■"}
SHOWN_METRICS = ("loss", "val_loss", "tokens_per_s", "acceptance_length")


def render_job(job: dict[str, Any]) -> RenderableType:
    """A job as a heading and a line a stage: bar, count, rate, time left, figures."""
    parts: list[RenderableType] = [_heading(job), _stage_table(job)]
    parts += [Text(f"{stage['name']}: {line}", style="dim") for stage in job["stages"] if (line := rejects_text(stage))]
    evaluated: dict[str, Any] = next((stage["summary"] for stage in job["stages"] if stage["name"] == "evaluate"), {})
    if evaluated.get("suites"):
        parts.append(acceptance_table(evaluated))
    if job.get("error"):
        parts.append(Text(error_text(job["error"]), style="red"))
    elif job.get("status_reason") and job["status_reason"]["message"]:
        parts.append(Text(job["status_reason"]["message"], style="yellow"))
    return Group(*parts)


def error_text(error: dict[str, Any]) -> str:
    """An error of a job in one line: where, what, what to do."""
    where = f"{error['where']}: " if error.get("where") else ""
    hint = f" ({error['hint']})" if error.get("hint") else ""
    return f"{error['reason']}: {where}{error['message']}{hint}"


def rejects_text(stage: dict[str, Any]) -> str:
    """What a finished stage rejected, in one line; empty where that is nothing."""
    books = stage["summary"].get("accounting") or {}
    if not books.get("rejected"):
        return ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in books["rejected"].items())
    return f"{books['taken'] - books['kept']} of {books['taken']} {books['unit']} rejected: {reasons}"


def duration(seconds: float | None) -> str:
    """Seconds as people read them: 45s, 3m05s, 2h07m."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def plain_lines(job: dict[str, Any], with_progress: bool) -> list[tuple[str, str]]:
    """What there is to say, each with its subject, so that nothing is said twice."""
    place = job["queue"]["position"]
    status = f"job {job['id']} {job['status']}" + (f", place {place} in line" if place else "")
    if job["attempt"] > 1:
        status += f", attempt {job['attempt']}"
    lines = [("job", status)]
    for stage in job["stages"]:
        if stage["status"] == "pending":
            continue
        took = f" in {duration(stage['seconds'])}" if stage["seconds"] is not None else ""
        rejects = f"; {line}" if (line := rejects_text(stage)) else ""
        lines.append((stage["name"], f"{stage['name']} {stage['status']}{took}{rejects}"))
        if with_progress and stage["status"] == "running" and stage["progress"]:
            words = [stage["name"], *_figures(stage["progress"])]
            lines.append((f"{stage['name']} progress", " ".join(word for word in words if word)))
    if job.get("error"):
        lines.append(("error", error_text(job["error"])))
    return lines


def _heading(job: dict[str, Any]) -> Text:
    text = Text()
    text.append(job["id"], style="bold")
    if job.get("name"):
        text.append(f"  {job['name']}")
    text.append(f"  {job['status']}", style=STYLES.get(job["status"], ""))
    text.append(f"  {job['progress']['percent']:.0f}%  {duration(job['durations']['total_s'])}")
    if job["queue"]["position"]:
        text.append(f"  place {job['queue']['position']} in line")
    if job["attempt"] > 1:
        text.append(f"  attempt {job['attempt']}", style="yellow")
    if job.get("draft"):
        text.append(f"  {job['draft']}", style="bold green")
    return text


def _stage_table(job: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for stage in job["stages"]:
        style = STYLES.get(stage["status"], "dim")
        count, rate, eta, figures = _figures(stage["progress"]) if stage["status"] == "running" else ("",) * 4
        table.add_row(
            Text(MARKS.get(stage["status"], "·"), style=style),
            Text(stage["name"], style=style),
            _bar(stage),
            Text(count or stage["status"], style=style),
            rate,
            eta or duration(stage["seconds"]),
            figures,
        )
    return table


def _bar(stage: dict[str, Any]) -> ProgressBar:
    if stage["status"] in ("succeeded", "reused"):
        return ProgressBar(total=1, completed=1, width=24)
    progress = stage["progress"] if stage["status"] == "running" else None
    if progress is None:
        return ProgressBar(total=1, completed=0, width=24, pulse=stage["status"] == "running")
    return ProgressBar(total=progress["total"] or 1, completed=progress["done"], width=24)


def _figures(progress: dict[str, Any] | None) -> tuple[str, str, str, str]:
    """Count, rate, time left, and the latest metrics."""
    if progress is None:
        return "", "", "", ""
    count = f"{progress['done']:g}/{progress['total']:g} {progress['unit']}" if progress["total"] else ""
    rate = "" if progress["rate"] is None else f"{progress['rate']:.2f}/s"
    eta = "" if progress["eta_s"] is None else f"ETA {duration(progress['eta_s'])}"
    metrics = progress["metrics"]
    shown = [f"{name} {metrics[name]:.4g}" for name in SHOWN_METRICS if name in metrics]
    if progress.get("activity"):
        shown.insert(0, progress["activity"])
    return count, rate, eta, "  ".join(shown)
