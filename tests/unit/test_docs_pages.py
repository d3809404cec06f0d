"""What the pages say is so: links lead somewhere, commands parse, messages and settings are those of the code."""

import inspect
import json
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from services.cli.main import command_line, leaves
from services.gateway.job_view import AttemptView, ErrorView, JobView, StatusReasonView
from services.gateway.problems import REASONS, SERVICE_PAGE, TITLES, ProblemDocument
from shared import retry_policy
from shared.errors import StatusReason, error_page
from shared.schemas.spec import JobSpec
from shared.settings import Settings
from shared.verifier_settings import VerifierSettings
from tests.chaos.test_nemeses import STRIKES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ERRORS = DOCS / "errors"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
COMMANDS = dict(leaves(command_line()))
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
VARIABLE = re.compile(r"\bEYRIE_[A-Z0-9_]*[A-Z0-9]\b")
CODE = ("services", "shared", "tools", "tests")
GAP = "…"  # stands for what differs in a message


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings]
    return set(slugs)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_another() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in LINK.findall(prose(page))}
    assert {page for page in PAGES if page.name != "README.md"} <= linked


def test_every_reason_has_a_page_and_every_page_a_reason() -> None:
    assert {page.stem for page in ERRORS.glob("*.md")} == {*StatusReason, "README"}
    index = (ERRORS / "README.md").read_text()
    for reason in StatusReason:
        page = ROOT / error_page(reason)
        assert page.read_text().startswith(f"# {reason}: ")
        assert f"\n| [{reason}]({reason}.md) | " in index


def test_the_index_says_how_often_each_reason_is_tried_again() -> None:
    said = {0: "never", 1: "once", 2: "twice", None: "until `EYRIE_MAX_ATTEMPTS` attempts were lost"}
    for reason in StatusReason:
        row = re.search(rf"^\| \[{reason}\].*\| ([^|]+) \|$", (ERRORS / "README.md").read_text(), flags=re.MULTILINE)
        assert row
        assert row[1].partition(";")[0] == said[retry_policy.RETRIES[reason].times]


def test_every_kind_of_problem_is_in_the_index() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", (ERRORS / "README.md").read_text(), flags=re.MULTILINE)
    assert {int(status): kind for status, kind in rows} == {status: kind for status, (kind, _) in TITLES.items()}
    assert len(rows) == len(TITLES)
    for page in (SERVICE_PAGE, *map(error_page, REASONS.values())):
        assert (ROOT / page).is_file()


@pytest.mark.parametrize("page", sorted(ERRORS.glob("*.md")), ids=name)
def test_examples_are_as_the_api_gives_them(page: Path) -> None:
    for block in blocks(page, "json"):
        example = json.loads(block)
        if "type" in example:
            assert ProblemDocument.model_validate(example).title == TITLES[example["status"]][1]
            continue
        assert example.keys() <= JobView.model_fields.keys()
        assert StatusReasonView.model_validate(example["status_reason"]).code == page.stem
        for attempt in example.get("attempts", []):
            assert AttemptView.model_validate(attempt)
        if error := example["error"]:
            assert ErrorView.model_validate(error).docs == name(page)


def messages() -> Iterator[tuple[str, str]]:
    """What the pages quote as messages: code in the column of that name."""
    for page in sorted(ERRORS.glob("*.md")):
        column = None
        for line in page.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
            if not cells:
                column = None
            elif "message" in cells:
                column = cells.index("message")
            elif column is not None:
                yield from ((page.stem, quoted) for quoted in re.findall(r"`([^`]+)`", cells[column]))


@cache
def source() -> str:
    """The code, with strings that go over several lines put together."""
    files = [file for folder in ("services", "shared") for file in sorted((ROOT / folder).rglob("*.py"))]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))


@pytest.mark.parametrize(("page", "message"), sorted(set(messages())))
def test_the_messages_of_the_pages_are_those_of_the_code(page: str, message: str) -> None:
    if re.match(r"[A-Z]\w+Error: ", message):  # the name of an exception
        return
    if message.startswith(("the training loss is ", "the validation loss is ")):
        message = message.removeprefix("the ").partition(" is ")[0]
    if message in {"paused on request", "cancelled on request"}:
        message = " on request"
    for part in message.split(GAP):
        text = part.strip(" .,:;()")
        assert len(text) < 3 or text in source(), (page, text)


def commands(page: Path) -> Iterator[str]:
    """Lines of shell blocks, and code in the text, that begin with `eyrie`."""
    for block in blocks(page, "sh"):
        yield from (line for line in block.replace("\\\n", " ").splitlines() if line.startswith("eyrie "))
    yield from re.findall(r"`(eyrie [a-z][^`|]*)`", prose(page).replace("\n", " "))


@pytest.mark.parametrize(("page", "line"), [(name(page), line) for page in PAGES for line in commands(page)])
def test_every_command_can_be_typed(page: str, line: str) -> None:
    _, *words = shlex.split(re.split(r" [|>] ", line)[0], comments=True)
    path = next((tuple(words[:size]) for size in (1, 2) if tuple(words[:size]) in COMMANDS), None)
    assert path, f"{page}: there is no command {words}"
    if len(words) == len(path):  # only its name, in the text
        return
    with COMMANDS[path].make_context(" ".join(path), words[len(path) :]) as context:
        assert not context.args
        for override in context.params.get("overrides") or []:
            assert_is_field(override.partition("=")[0].split("."))


def assert_is_field(path: list[str], model: type[BaseModel] = JobSpec) -> None:
    field = model.model_fields.get(path[0])
    assert field, f"{path[0]} is no field of {model.__name__}"
    if len(path) > 1 and path[0] != "metadata":
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        assert_is_field(path[1:], next(kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, BaseModel)))


def variables(model: type[BaseSettings]) -> dict[str, FieldInfo]:
    """A class's settings by the name of their environment variable."""
    found = {}
    for field_name, field in model.model_fields.items():
        alias, plain = field.validation_alias, f"{model.model_config['env_prefix']}{field_name}"
        found[str(alias.choices[0] if isinstance(alias, AliasChoices) else plain).upper()] = field
    return found


def table_row(variable: str, field: FieldInfo) -> str:
    """A setting as docs/settings.md has it."""
    default = field.get_default(call_default_factory=True)
    text = default.as_posix().replace(tempfile.gettempdir(), "/tmp") if isinstance(default, Path) else default
    shown = "" if text is None or text in ("", []) else f"`{json.dumps(text) if isinstance(text, bool) else text}`"
    return f"| `{variable}` | {shown} | {(field.description or '').replace('|', chr(92) + '|')} |"


@pytest.mark.parametrize("model", [Settings, VerifierSettings], ids=lambda model: model.__name__)
def test_every_setting_is_in_the_table_as_the_code_has_it(model: type[BaseSettings]) -> None:
    lines = (DOCS / "settings.md").read_text().splitlines()
    for variable, field in variables(model).items():
        assert table_row(variable, field) in lines
    documented = Counter(re.findall(r"^\| `(\w+)` \|", "\n".join(lines), flags=re.MULTILINE))
    assert set(documented.values()) == {1}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_variable_that_is_named_is_read_somewhere(page: Path) -> None:
    known = {*variables(Settings), *variables(VerifierSettings)}
    known |= set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    for variable in set(VARIABLE.findall(page.read_text())) - known:
        assert f'"{variable}"' in read_somewhere(), f"{variable} is read nowhere"


@cache
def read_somewhere() -> str:
    here = Path(__file__).resolve()
    files = [file for folder in CODE for file in (ROOT / folder).rglob("*.py") if file != here]
    return "\n".join(file.read_text() for file in files)


def test_the_table_of_nemeses_is_that_of_the_suite() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\d+) \|", (DOCS / "chaos.md").read_text())
    assert {name: int(strikes) for name, strikes in rows} == {name: full for name, (_, full) in STRIKES.items()}
