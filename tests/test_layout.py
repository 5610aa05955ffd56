"""The repository keeps its shape: imports point one way, third-party packages stay at home, files stay small."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "shopskill_lib"

ORDER = [
    "curriculum",
    "errors",
    "clock",
    "traffic",
    "console",
    "files",
    "sheets",
    "folders",
    "doctor",
    "records",
    "jsonl",
    "spending",
    "text",
    "templates",
    "skills",
    "cards",
    "ledger",
    "disguises",
    "passages",
    "firewall",
    "shops.protocol",
    "shops.budget",
    "shops.catalog",
    "shops.splits",
    "shops.reward",
    "shops.generator",
    "shops.search",
    "shops.pages",
    "shops.separated",
    "shops.embedded",
    "shops.slots",
    "shops.contract",
    "shops.serve",
    "shops.outcomes",
    "shops.foreign",
    "shops.door",
    "shops.leases",
    "shops.servers",
    "shops.shopsimulator",
    "simulated.competences",
    "simulated.reading",
    "simulated.decisions",
    "simulated.recorded",
    "simulated.chat",
    "simulated.shopper",
    "simulated.lessons",
    "simulated.casefile",
    "simulated.diagnosis",
    "simulated.analyst",
    "simulated.merging",
    "simulated.author",
    "simulated.wire",
    "simulated.__main__",
    "endpoints",
    "replies",
    "textcalls",
    "streams",
    "refusals",
    "exchange",
    "servers",
    "models",
    "dialogue",
    "agent",
    "probes",
    "replicates",
    "store",
    "rolloutset",
    "workers",
    "rollouts",
    "trajectories",
    "briefs",
    "audits",
    "submissions",
    "inquiry",
    "analysts",
    "sources",
    "optimal",
    "masks",
    "pools",
    "adapters.lossless",
    "adapters.recorded",
    "adapters.folder",
    "adapters.shopsimrl",
    "adapters.skillbank",
    "adapters.assigned",
    "adapters.gate_folder",
    "adapters.react",
    "adapters.calls",
    "adapters.dialogues",
    "adapters.rows",
    "adapters.openai_messages",
    "adapters.shopsimulator_files",
    "adapters.conversations",
    "adapters.chatml",
    "adapters.rollout_rows",
    "adapters.verl",
    "adapters.trl",
    "adapters.slime",
    "ols",
    "resampling",
    "agreement",
    "checks",
    "inference",
    "sequential",
    "diagnostics",
    "subgroups",
    "rails",
    "power",
    "noise",
    "cells",
    "observations",
    "selection",
    "comparison",
    "gates",
    "floors",
    "pilots",
    "planning",
    "looks",
    "claim",
    "settings",
    "drift",
    "pooling",
    "similarity",
    "authoring",
    "clusters",
    "mechanisms",
    "compilation",
    "compiler",
    "workbench",
    "leaks",
    "pairing",
    "protocol",
    "repeats",
    "desk",
    "distil",
    "cold_start",
    "triage",
    "lab.direct",
    "lab.truth",
    "lab.learner",
    "lab.planted",
    "rounds",
    "chronicle",
    "cycle",
    "interim",
    "ranking",
    "lineup",
    "contest",
    "online",
    "status",
    "stages",
    "tables",
    "plots",
    "charts",
    "viewer",
    "report",
    "parameters",
    "interviews",
    "checkup",
    "run",
    "adapters.run_folder",
    "adapters.formats",
    "pool",
    "rank",
    "cli",
    "__main__",
]
"""Every module; a module imports only modules above it."""

HOMES = {
    "statsmodels": {"ols"},
    "rapidfuzz": {"text"},
    "sklearn": {"similarity"},
    "tantivy": {"shops.search"},
    "openai": {"exchange"},
    "httpx2": {"exchange", "models", "simulated.wire", "shops.door"},
    "tqdm": {"workers"},
    "matplotlib": {"plots", "charts"},
    "seaborn": {"plots"},
    "papermill": {"parameters", "run"},
    "nbconvert": {"report"},
    "nbformat": {"report"},
    "yaml": {"parameters"},
    "argparse": {"console", "cli", "pool", "rank", "run", "shops.serve", "simulated.__main__", "doctor", "checkup"},
}
"""Packages that only these modules may import."""

ARRAYS_ONLY = {
    "optimal",
    "masks",
    "ols",
    "resampling",
    "checks",
    "inference",
    "diagnostics",
    "power",
    "rails",
    "noise",
    "agreement",
}
"""Modules that import nothing of ours but `errors` and each other."""


def modules() -> dict[str, Path]:
    paths = sorted(LIBRARY.rglob("*.py"))
    names = {path: ".".join(path.relative_to(LIBRARY).with_suffix("").parts) for path in paths}
    return {name: path for path, name in names.items() if not name.endswith("__init__")}


def imports(path: Path) -> set[str]:
    """Modules a file imports, ours as `shopskill_lib.x`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            is_package = (ROOT / Path(*node.module.split("."))).is_dir()
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if is_package else {node.module}
    return found


def ours(path: Path) -> set[str]:
    return {name.removeprefix("shopskill_lib.") for name in imports(path) if name.startswith("shopskill_lib.")}


def test_every_module_has_its_place_in_the_order() -> None:
    assert set(modules()) == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_imports_point_one_way(name: str) -> None:
    above = set(ORDER[: ORDER.index(name)])
    assert ours(modules()[name]) <= above
    if name in ARRAYS_ONLY:
        assert ours(modules()[name]) <= ARRAYS_ONLY | {"errors"}


@pytest.mark.parametrize("package", HOMES)
def test_third_party_packages_stay_at_home(package: str) -> None:
    users = {name for name, path in modules().items() if any(i.split(".")[0] == package for i in imports(path))}
    assert users == HOMES[package]


def test_packages_import_nothing_by_themselves() -> None:
    for path in LIBRARY.rglob("__init__.py"):
        assert not imports(path), path


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {requirement_name(text) for text in project["dependencies"]} | {"yaml", "sklearn"}
    used = {item.split(".")[0] for path in modules().values() for item in imports(path)}
    assert used - set(sys.stdlib_module_names) - {"shopskill_lib"} <= declared


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=lambda path: path.name)
def test_files_and_functions_are_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 500
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert all(node.end_lineno is not None and node.end_lineno - node.lineno < 60 for node in functions)


def test_nine_functions_in_ten_are_short() -> None:
    lengths = [
        (node.end_lineno or 0) - node.body[0].lineno - bool(ast.get_docstring(node)) + 1
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    assert sum(length <= 30 for length in lengths) >= 0.9 * len(lengths)


def test_readme_names_every_module_notebook_and_parameter_file() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tracked = [*modules().values(), *(ROOT / "notebooks").rglob("*.ipynb"), *(ROOT / "params").glob("*.yaml")]
    assert [path.name for path in tracked if path.name not in readme] == []


def test_architecture_names_every_module_in_order() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)`", text, flags=re.MULTILINE)
    assert rows == ORDER


def test_environment_equals_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    conda = [item for item in environment if isinstance(item, str)]
    (pip,) = (item["pip"] for item in environment if isinstance(item, dict))
    assert conda[:2] == [f"python{project['requires-python']}", "pip"]
    assert conda[2:] + pip[:-1] == project["dependencies"]
    assert pip[-1] == "-e ."


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {
        requirement_name(line)
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    assert {requirement_name(text) for text in wanted} <= pinned


def requirement_name(requirement: str) -> str:
    return re.split(r"[<>=!~ \[;]", requirement, maxsplit=1)[0].lower().replace("_", "-")
