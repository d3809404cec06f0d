"""`eyrie lineage DRAFT`: what a draft was made from, as a tree with short hashes."""

from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from services.cli.arguments import DraftId
from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.options import Output, OutputOption, UrlOption, console, print_json
from shared.sizes import human_bytes

EXIT_NOT_VERIFIED = 1
HASH_CHARACTERS = 12


def show_lineage(
    draft: DraftId,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file again and compare its SHA-256.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a draft was made from, by hash; exit code 1 where something is not what it was."""
    with EyrieClient(url) as client:
        lineage = client.get_lineage(draft, rehash=verify)
    if output == Output.JSON:
        print_json(lineage)
    else:
        where = console()
        where.print(lineage_tree(lineage["tree"]), soft_wrap=not where.is_terminal)
        where.print(_verdict(lineage))
    if not lineage["verified"]:
        raise typer.Exit(EXIT_NOT_VERIFIED)


def lineage_tree(node: dict[str, Any], parent: Tree | None = None) -> Tree:
    """A node with everything below it; what stands further up in full is only named."""
    label = _label(node)
    tree = Tree(label) if parent is None else parent.add(label)
    for problem in node["problems"]:
        tree.add(Text(problem, style="bold red"))
    for inner in node["inputs"]:
        if not inner["ref"]:
            lineage_tree(inner, tree)
    if shown := [f"{inner['name']} {inner['digest'][:HASH_CHARACTERS]}" for inner in node["inputs"] if inner["ref"]]:
        tree.add(Text(f"and, as above: {', '.join(shown)}", style="dim"))
    return tree


def _label(node: dict[str, Any]) -> Text:
    mark, style = ("✔", "green") if node["verified"] else ("✘", "bold red")
    text = Text(f"{mark} ", style=style)
    text.append(node["name"] if node["kind"] in ("draft", "stage") else f"{node['kind']} {node['name']}", style="bold")
    text.append(f" {node['digest'][:HASH_CHARACTERS]}", style="cyan")
    if words := ", ".join(_words(node)):
        text.append(f"  {words}", style="default")
    return text


def _words(node: dict[str, Any]) -> list[str]:
    """The few facts that stand beside a node."""
    facts = node["facts"]
    words = [f"{node['files']} file{'s' if node['files'] != 1 else ''}"] if node["files"] else []
    words += [human_bytes(node["bytes"])] if node["bytes"] else []
    words += [f"{facts['rows']} rows"] if facts.get("rows") else []
    words += [f"weight {facts['weight']:g}"] if facts.get("weight") else []
    if books := facts.get("accounting"):
        words.append(f"{books['kept']} of {books['taken']} {books['unit']}")
    words += [f"layers {facts['layer_ids']}"] if facts.get("layer_ids") else []
    if sampling := facts.get("sampling"):
        words.append(f"temperature {sampling['temperature']:g}")
    words += [f"seed {facts['seed']}"] if facts.get("seed") is not None else []
    words += [f"revision {facts['revision'][:HASH_CHARACTERS]}"] if facts.get("revision") else []
    for part in ("config", "chat_template", "tokenizer", "weights") if node["kind"] == "verifier" else ():
        if digest := facts.get(f"{part}_sha256"):
            words.append(f"{part.replace('_', ' ')} {digest[:6]}")
    return words


def _verdict(lineage: dict[str, Any]) -> Text:
    how = "every file read again" if lineage["checked"] == "content" else "sizes; --verify reads every file again"
    if lineage["verified"]:
        return Text(f"verified ({how})", style="green")
    return Text(f"not verified: something above is not what it was ({how})", style="bold red")
