"""The cache of generated kernels: content-addressed modules, with numba's machine code beside them.

    <cache>/expr_<first 16 hex digits of the source's SHA-256>.py
    <cache>/expr_….<key>.built      numba's cache holds the kernel for <key>
    <cache>/expr_….<key>.so         its library, for processes without a compiler (`kernels.ahead`)
    <cache>/__pycache__/            numba's own index and data

<cache> is `$EDGED_CACHE`, else `~/.cache/edged/expr`, else (neither can be written safely) a
temporary directory of this process.  It must belong to this user and be writable by no other,
because its content is executed.  <key> names the versions of Python, numba and llvmlite, and the
processor (`kernels.ahead.identity`).  A source's first line carries the digest of this package's
code, so that a new version of edged never loads an old kernel.

A missing kernel is compiled in a child process, which keeps the compiler's time and memory out of
the daemon; the parent then loads its library, or, where it has the compiler itself or a kernel
fits no library, numba's cache.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edged.errors import KernelError
from edged.events.journal import writer
from edged.expressions.codegen import SIGNATURE
from kernels import ahead
from kernels.ahead.identity import identity
from kernels.ahead.library import Library, is_whole

COMPILE_SECONDS_MAX = 600
"""Time limit of a child's compilation."""

REFUSED = 3
"""Exit status of a child whose kernel numba refuses."""
FUNCTION = "kernel"
"""The name of a generated kernel in its module and in its library."""
_LOADED: dict[str, Any] = {}


def kernel(source: str, child: bool = True) -> Any:
    """The compiled kernel of a generated source.  Raises KernelError where it cannot be compiled.

    A kernel that is not cached is compiled in a child process, or in this one without `child`.
    """
    path, text = _place(source)
    name = path.stem
    if name not in _LOADED:
        _write(path, text)
        built = _marker(path).exists()
        if ahead.active():
            _LOADED[name] = _from_library(path, built)
        elif built or child:
            if not built:
                _compile(path)
            _LOADED[name] = load(path)
        else:
            _LOADED[name] = make(path)
        if not built:
            _marker(path).touch()
    return _LOADED[name]


def library_of(source: str) -> Path:
    """Where the library of a generated source lies."""
    return library_path(_place(source)[0])


def _place(source: str) -> tuple[Path, str]:
    """The module of a generated source and its text."""
    text = f"# edged expression {_version()}\n{source}"
    name = f"expr_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return cache_directory() / f"{name}.py", text


def _from_library(path: Path, built: bool) -> Any:
    """The kernel of a module's library, which a child makes where it is missing or damaged; where
    that fails, or the library cannot be loaded, numba's."""
    library = library_path(path)
    said = "" if built and is_whole(library) else _compile(path)
    try:
        return Library(library).function(FUNCTION)
    except OSError as problem:
        writer()("warning", f"an expression is loaded by numba: {said or problem}", {})
        return load(path)


def make(path: Path) -> Any:
    """`load`, and write the library too, for processes without a compiler.

    Where a library cannot be made, which standard error says, they import the compiler and load
    numba's cache."""
    from kernels.ahead import build
    from kernels.ahead.elf import LinkError

    function = load(path)
    try:
        entry = build.of_dispatcher(FUNCTION, function, SIGNATURE)
        build.build(library_path(path), [entry], {})
    except (LinkError, OSError) as problem:
        sys.stderr.write(f"no object can be made: {problem}\n")
    return function


def load(path: Path) -> Any:
    """Import a generated module and compile its kernel, from numba's cache where it is warm."""
    from numba.core.errors import NumbaError

    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise KernelError(f"{path}: not a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    function = module.kernel
    try:
        function.compile(SIGNATURE)
    except NumbaError as problem:
        raise compile_error(path, str(problem)) from None
    function.disable_compile()
    return function


@functools.cache
def cache_directory() -> Path:
    """The cache directory, created with mode 0700 where it is missing."""
    named = os.environ.get("EDGED_CACHE")
    choices = [Path(named)] if named else []
    with contextlib.suppress(RuntimeError):
        choices.append(Path.home() / ".cache" / "edged" / "expr")
    for choice in choices:
        if _usable(choice):
            return choice
    temporary = Path(tempfile.mkdtemp(prefix="edged-expr-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _usable(directory: Path) -> bool:
    """Whether the directory is private to this user and writable."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = directory.stat()
    except OSError:
        return False
    shared = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return facts.st_uid == os.getuid() and not shared and os.access(directory, os.W_OK | os.X_OK)


@functools.cache
def _version() -> str:
    """Digest of this package's sources, which generated code calls."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _key() -> str:
    """What machine code depends on beside its source."""
    named = os.environ.get("NUMBA_CACHE_DIR", "")
    return hashlib.sha256(identity() + named.encode()).hexdigest()[:12]


def library_path(path: Path) -> Path:
    """Where the library of a generated module lies."""
    return path.with_name(f"{path.stem}.{_key()}.so")


def _marker(path: Path) -> Path:
    return path.with_suffix(f".{_key()}.built")


def _write(path: Path, text: str) -> None:
    """Write the source atomically.  An equal file is left alone, because numba's cache depends on
    its modification time."""
    if path.exists() and path.read_text() == text:
        return
    for marker in path.parent.glob(f"{path.stem}.*.built"):
        marker.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def _compile(path: Path) -> str:
    """Compile in a child process, which writes a library and the machine code into numba's cache.
    Returns the last line that it says."""
    root = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = root if not inherited else f"{root}{os.pathsep}{inherited}"
    done = subprocess.run(
        [sys.executable, "-m", "edged.expressions.compile", str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS_MAX,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1:]
    if done.returncode != 0:
        if done.returncode == REFUSED:
            raise compile_error(path, done.stderr)
        raise KernelError(f"{path}: the kernel does not compile: {(last or ['no message'])[0]}")
    return "".join(last)


class CompileError(KernelError):
    """numba refuses a generated kernel."""

    def __init__(self, path: Path, line: int, reason: str, text: str) -> None:
        self.line, self.reason, self.text = line, reason, text
        super().__init__(f"{path}:{line}: the kernel does not compile: {reason}")


def compile_error(path: Path, text: str) -> CompileError:
    """The error that numba reports in a text: its first place in the module, and its reason."""
    found = re.search(rf'{re.escape(path.name)}", line (\d+)', text)
    said = re.findall(r"EXPECTED (.*)", text)
    lines = [line.strip() for line in text.splitlines()]
    known = [n for n in lines if n and not n.startswith(("Failed in nopython", "During:", "File "))]
    reason = f"expected {said[-1]}" if said else (known or ["no message"])[0]
    return CompileError(path, int(found[1]) if found else 0, reason, text)
