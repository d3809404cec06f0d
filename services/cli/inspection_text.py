"""An inspection as people read it. What is learnt stands between «», in colour on a terminal."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

BAR = 40
INDENT = 9
LONGEST_TEXT = 600
LEARNT = "bold green"
HEADING = "bold"
CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

Json = dict[str, Any]


def inspection_text(found: Json) -> Group:
    """All of it, one part below the other."""
    return Group(*_parts(found))


def _parts(found: Json) -> Iterator[RenderableType]:
    yield Text(f"{found['dataset']} ({found['kind']})", style=HEADING)
    yield _vocabulary(found["vocabulary"]) if found["vocabulary"] else _counts(found)
    if len(found["sources"]) > 1:
        yield from _section("Sources", _sources(found["sources"]))
    if found["rejected"]:
        yield from _section("Rejected", *_reasons(found, "rejected"))
    if found["tokens"]:
        yield from _section(_lengths_title(found), _bars(found["tokens"]["histogram"]), _statistics(found["tokens"]))
    if found["refused"]:
        yield from _section("Refused when rendered", *_reasons(found, "refused"))
    for number, sample in enumerate(found["samples"] or [], 1):
        for turn in sample["turns"]:
            place = _place(found, sample)
            yield from _section(f"Sample {number}: {place}{_turn_title(sample, turn)}", _turn_text(turn))
    if found["why_not_rendered"]:
        yield Text(f"\nNot all was rendered: {found['why_not_rendered']}")
    for warning in found["warnings"]:
        yield Text(f"\nNote: {warning}")
    if found["problem"]:
        yield Text(f"\nNo job could use it: {_printable(found['problem'])}", style="bold red")


def _section(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", style=HEADING)
    yield from content


def _counts(found: Json) -> Table:
    rejected = sum(reason["rows"] for reason in found["rejected"])
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column()
    table.add_row("rows", str(found["rows"]))
    table.add_row("kept", str(found["kept"]), f"{found['train']} to train on, {found['val']} held out")
    table.add_row("rejected", str(rejected))
    for note, count in found["mended"].items():
        table.add_row("mended", str(count), escape(note))
    return table


def _vocabulary(vocabulary: Json) -> Text:
    lines = [f"{array} is in {name}" for array, name in vocabulary["files"].items()]
    if vocabulary["draft_size"] is not None:
        lines.append(f"{vocabulary['draft_size']} of the verifier's {vocabulary['target_size']} tokens")
    return Text("\n".join(lines + ([vocabulary["note"]] if vocabulary["note"] else [])))


def _sources(sources: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("SOURCE", "ROWS", "KEPT"):
        table.add_column(heading, justify="left" if heading == "SOURCE" else "right")
    for source in sources:
        table.add_row(escape(source["name"]), str(source["rows"]), str(source["kept"]))
    return table


def _reasons(found: Json, kind: str) -> Iterator[RenderableType]:
    for reason in found[kind]:
        yield Text(f"{reason['rows']:>7}  {reason['reason']}")
        for row in reason["first"]:
            yield Padding(Text(f"{_place(found, row)}: {_printable(row['message'])}"), (0, 0, 0, INDENT), expand=False)


def _place(found: Json, row: Json) -> str:
    return f"{row['source']} line {row['line']}" if len(found["sources"]) > 1 else f"line {row['line']}"


def _lengths_title(found: Json) -> str:
    tokens = found["tokens"]
    what = f"{tokens['measured']} {tokens['unit']} of "
    kept = f"all {found['kept']}" if tokens["complete"] else f"a sample of {tokens['conversations']} of {found['kept']}"
    return f"Token lengths: {what}{kept} kept conversations"


def _bars(histogram: list[Json]) -> Table:
    longest = max(bar["count"] for bar in histogram)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(width=BAR, no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for bar in histogram:
        filled = -(-bar["count"] * BAR // longest)
        table.add_row(f"{bar['low']}–{bar['high']}", "█" * filled, str(bar["count"]))
    return table


def _statistics(tokens: Json) -> Text:
    text = Text(f"min {tokens['min']}, median {tokens['median']}, 95 % up to {tokens['p95']}, max {tokens['max']}; ")
    text.append(f"{tokens['total']} tokens{' in all' if tokens['complete'] else ' in the sample'}")
    if tokens["unit"] == "rows":
        text.append(f", {tokens['supervised']} of them learnt")
    over = tokens["over_max_seq_len"]
    text.append(f"\n{over} longer than data.max_seq_len {tokens['max_seq_len']}")
    if over:
        text.append(f": {tokens['clipped']} clipped, {over - tokens['clipped']} refused")
    return text


def _turn_title(sample: Json, turn: Json) -> str:
    several = f", turn {turn['turn'] + 1} of {len(sample['turns'])}" if len(sample["turns"]) > 1 else ""
    learnt = f"{turn['supervised_tokens']} learnt" if turn["supervised_tokens"] else "the verifier writes the answer"
    clipped = ", clipped" if turn["clipped"] else ""
    return f"{several}: {turn['tokens']} tokens, {learnt}{clipped}"


def _turn_text(turn: Json) -> Text:
    text = Text()
    for segment in turn["segments"]:
        content = _shortened(_content(segment))
        if segment["supervised"]:
            text.append(f"«{content}»", style=LEARNT)
        else:
            text.append(content)
    return text


def _content(segment: Json) -> str:
    if segment["supervised"] and not segment["token_ids"]:
        return "the verifier writes here"
    if segment["text"] is None:
        return f"{' '.join(map(str, segment['token_ids']))} "
    return _printable(segment["text"])


def _shortened(text: str) -> str:
    left_out = len(text) - LONGEST_TEXT
    if left_out < LONGEST_TEXT // 10:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]} [... {left_out} characters ...] {text[-half:]}"


def _printable(text: str) -> str:
    """Data may hold what a terminal takes for a command."""
    return text.translate(CONTROL)
