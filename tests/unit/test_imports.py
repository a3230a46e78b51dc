"""The order of the modules: lower levels never import higher ones, and importing the package stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A module belongs to the level of the longest entry that names it or a package around it.
LEVELS = {
    "errors": 0,
    "offline": 0,
    "resources": 0,
    "switching": 0,
    "user_folders": 0,
    "values": 0,
    # A result writes itself in the forms of `outputs`.
    "types": 1,
    "framing": 1,
    "audio": 1,
    "content": 1,
    "headers": 1,
    "mp3": 1,
    "mp3_repair": 1,
    "ogg_gaps": 1,
    "sndfile": 1,
    "media": 1,
    "stretches": 1,
    "outputs": 1,
    "powerset": 1,
    "activity": 1,
    "overlay": 1,
    "stitch": 1,
    "postprocess": 1,
    "transcript": 1,
    "cluster": 1,
    "score": 1,
    "layers": 2,
    "hardware": 2,
    "candidates": 2,
    "registry": 2,
    "recipe": 2,
    "recipe_fields": 2,
    "recipe_parse": 2,
    "recipe_lookup": 2,
    "cache": 1,
    "kernels": 3,
    "cpu": 4,
    "backend": 4,
    "model": 5,
    "weights": 5,
    "channels": 1,
    "spool": 1,
    "voiceprints": 1,
    "rows": 1,
    "confidence": 1,
    "voices": 6,
    "assembly": 6,
    "early": 6,
    "clustering": 6,
    "analysis": 6,
    "rehearsal": 6,
    "modes": 6,
    "engine": 6,
    "engine_cuda": 6,
    "cuda_embeddings": 6,
    "pipeline": 6,
    "batch": 6,
    "workers": 6,
    "remote": 7,
    "tuner": 7,
    "bench": 7,
    "dataset": 7,
    "": 8,
    "__main__": 8,
    "cli": 8,
}


def module_files() -> dict[str, Path]:
    """Every module of the package by its name below `diarize`, "" for the package itself."""
    found = {}
    for folder, prefix in ((ROOT / "diarize", ""), (ROOT / "cli", "cli")):
        for path in folder.rglob("*.py"):
            parts = (prefix, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(part for part in parts if part and part != "__init__")] = path
    return found


MODULES = module_files()


def level(module: str) -> int:
    """Level of a module by the table."""
    name = module
    while name not in LEVELS:
        assert "." in name, f"diarize/{module}.py has no level; add it to LEVELS in {Path(__file__).name}"
        name = name.rpartition(".")[0]
    return LEVELS[name]


def imports(module: str) -> set[str]:
    """Modules of ours that a module imports, wherever in its text."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "diarize":
                    found.add(alias.name.partition(".")[2])
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parts = package.split(".") if package else []
                base = parts[: len(parts) - (node.level - 1)]
            elif node.module and node.module.split(".")[0] == "diarize":
                base = []
            else:
                continue
            name = node.module or ""
            base = [*base, *(name.split(".") if node.level else name.split(".")[1:])]
            base = [part for part in base if part]
            for alias in node.names:
                # The version is a constant of the package itself, whose other names are of higher levels.
                if not base and alias.name == "__version__":
                    continue
                inner = ".".join([*base, alias.name])
                found.add(inner if inner in MODULES else ".".join(base))
    return found


def test_the_reader_of_imports_sees_them() -> None:
    assert "hardware" in imports("backend.base")
    assert "layers" in imports("backend.base")
    assert "cli.run" in imports("cli.main")
    assert "errors" in imports("types")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_module_imports_a_higher_level(module: str) -> None:
    own = level(module)
    # The package itself gives every module its version, and loads the public names lazily.
    higher = {name for name in imports(module) if name and level(name) > own}
    assert not higher, f"{module or 'diarize'} (level {own}) imports {sorted(higher)}"


def test_nothing_imports_the_command_line() -> None:
    guilty = [
        module
        for module in MODULES
        if module.split(".")[0] not in ("cli", "__main__")
        and any(name.split(".")[0] == "cli" for name in imports(module))
    ]
    assert guilty == []


def test_kernels_import_nothing_of_ours_but_kernels() -> None:
    kernels = [module for module in MODULES if module.split(".")[0] == "kernels"]
    assert kernels
    guilty = {module: sorted(i for i in imports(module) if i.split(".")[0] != "kernels") for module in kernels}
    assert {module: found for module, found in guilty.items() if found} == {}


def test_the_library_never_prints() -> None:
    guilty = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for module, path in MODULES.items()
        if not module.startswith("cli")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ]
    assert guilty == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, diarize; print(sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(ast.literal_eval(done.stdout))
    assert "diarize" in loaded
    assert not loaded & {"numba", "numpy", "scipy", "huggingface_hub", "soundfile", "rich", "typer"}
