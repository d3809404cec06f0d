"""Who may import whom: the three rules of the layout, read from the tree and from two processes.

`services/*` may import `shared`; `shared` imports no service; no service imports another. The
gateway and the RQ worker process never import torch, vllm or transformers.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = frozenset({"datasets", "speculators", "torch", "transformers", "vllm"})
TORCH_FREE_ENTRY_POINTS = ("services.gateway.app", "services.worker.main")


def broken_rules(root: Path) -> list[str]:
    """One line per import that breaks a rule: `path:line: importer imports imported`."""
    found = []
    for path in sorted([*root.glob("shared/**/*.py"), *root.glob("services/**/*.py")]):
        module = module_name(path.relative_to(root))
        is_package = path.name == "__init__.py"
        for line, imported in imports(path.read_text(), module, is_package=is_package):
            if not allowed(module, imported):
                found.append(f"{path.relative_to(root)}:{line}: {module} imports {imported}")
    return found


def allowed(importer: str, imported: str) -> bool:
    match imported.split("."):
        case ["services"]:
            return False
        case ["services", service, *_]:
            return importer.split(".")[:2] == ["services", service]
    return True


def imports(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute name of all that a module imports, wherever in it the statement stands.

    `from services import gateway` counts as an import of `services.gateway`; relative imports are
    resolved; `import_module("...")` and `__import__("...")` count where they are given a literal.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(names=names):
                base = imported_base(node, module, is_package=is_package)
                for alias in names:
                    joined = base == "services" and alias.name != "*"
                    yield node.lineno, f"{base}.{alias.name}" if joined else base
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def imported_base(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    """The module that a `from ... import` reads from, as an absolute name."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    climbed = node.level - 1 if is_package else node.level
    return ".".join([*parts[: len(parts) - climbed], *([node.module] if node.module else [])])


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def write(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


def test_services_import_shared_and_nothing_else_of_ours():
    assert (ROOT / "services").is_dir()
    assert (ROOT / "shared").is_dir()
    assert broken_rules(ROOT) == []


def test_what_is_allowed_is_not_reported(tmp_path):
    write(
        tmp_path,
        {
            "shared/ids.py": "import os\nfrom shared.errors import Problem\nfrom . import errors\n",
            "services/gateway/app.py": (
                "from shared import ids\n"
                "from services.gateway import deps\n"
                "from services.gateway.deps import Store\n"
                "from .routers import jobs\n"
                "from . import deps\n"
            ),
            "services/gateway/__init__.py": "from .app import app\n",
            "services/gateway/routers/jobs.py": "from ..deps import Store\nfrom .. import app\n",
            "services/worker/main.py": "import servicesque\nimport services.worker.queue\n",
        },
    )
    assert broken_rules(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "source", "imported"),
    [
        ("shared/ids.py", "import services.gateway.app", "services.gateway.app"),
        ("shared/ids.py", "from services import worker", "services.worker"),
        ("shared/ids.py", "from services import *", "services"),
        ("shared/ids.py", "from ..services import cli", "services.cli"),
        ("shared/schemas/job.py", "import services", "services"),
        ("services/gateway/app.py", "from services.worker.main import run", "services.worker.main"),
        ("services/gateway/app.py", "from services import gateway, cli", "services.cli"),
        ("services/gateway/app.py", "from ..worker import main", "services.worker"),
        ("services/gateway/app.py", "from .. import worker", "services.worker"),
        ("services/gateway/__init__.py", "from ..worker import main", "services.worker"),
        ("services/gateway/routers/jobs.py", "from ...cli import main", "services.cli"),
        ("services/cli/main.py", "def f():\n    import services.gateway", "services.gateway"),
        (
            "services/cli/main.py",
            "import importlib\nimportlib.import_module('services.verifier.launch')",
            "services.verifier.launch",
        ),
    ],
)
def test_what_is_forbidden_is_reported_with_its_place(tmp_path, name, source, imported):
    write(tmp_path, {name: f'"""A room."""\n{source}\n'})
    (report,) = broken_rules(tmp_path)
    place, _, rest = report.partition(": ")
    assert place == f"{name}:{1 + len(source.splitlines())}"
    assert rest == f"{module_name(Path(name))} imports {imported}"


def heavy_modules_of(statement: str) -> list[str]:
    """Those of HEAVY that a fresh interpreter holds after a statement."""
    code = (
        f"{statement}\nimport sys\nprint(*sorted({set(HEAVY)!r} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("entry_point", TORCH_FREE_ENTRY_POINTS)
def test_gateway_and_worker_process_stay_free_of_torch(entry_point):
    assert heavy_modules_of(f"import {entry_point}") == []


@pytest.mark.parametrize(
    ("entry_point", "slow"),
    [("services.worker.process_guard", "pydantic"), ("services.worker.stage_main", "numpy pyarrow redis httpx")],
)
def test_what_runs_for_every_stage_starts_fast(entry_point, slow):
    """Each job starts seven of them: these libraries took more time than the rest."""
    code = f"import sys, {entry_point}; print(*[name for name in {slow.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_check_for_heavy_modules_sees_them():
    assert heavy_modules_of("import sys; sys.modules['torch._C'] = sys") == ["torch"]
