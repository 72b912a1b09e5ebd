"""Optimisers as source text: what a program may contain, and how it is loaded.

A program is a module with one class that derives from `Searcher`. What it may import and name is a list of what is
allowed, checked on the syntax tree before anything runs. That is the first of three fences; the limits and the audit
hook of `sandbox` are the others.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from envs.autotune_env.optimizers.search import Searcher

CONTRACT = "envs.autotune_env.optimizers.search"
PROCESS = "envs.autotune_env.optimizers.process"

ALLOWED: Mapping[str, frozenset[str] | None] = MappingProxyType(
    {
        "__future__": frozenset({"annotations"}),
        "bisect": None,
        "collections": None,
        "dataclasses": frozenset({"dataclass", "field"}),
        "functools": frozenset({"partial", "reduce"}),
        "heapq": None,
        "itertools": None,
        "math": None,
        "statistics": frozenset({"fmean", "mean", "median", "pstdev", "stdev"}),
        PROCESS: frozenset({"Process"}),
        CONTRACT: frozenset({"FAILED", "Search", "Searcher", "View", "accepts"}),
    }
)
"""Modules that may be imported, and which names of each; None is all of them, or the module itself."""

FORBIDDEN_NAMES = frozenset(
    {
        *("BaseException", "breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "hasattr"),
        *("help", "input", "locals", "memoryview", "open", "setattr", "vars"),
    }
)

FORBIDDEN_ATTRIBUTES = frozenset(
    {
        *("ag_frame", "cr_frame", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "gi_code", "gi_frame"),
        *("gi_yieldfrom", "mro", "tb_frame", "tb_next", "format_map"),
        *("base", "ctypes", "dump", "record", "setflags", "tofile"),
    }
)
"""Ways from an object to frames, modules and types; and those by which an array is changed or written."""

DUNDERS = frozenset({"__init__", "__post_init__", "__slots__"})
"""Names with two underscores that a class may define."""

MAX_CHARACTERS = 20_000


class ProgramError(ValueError):
    """A text that is no permitted program; the message is `code: sentence` and names the line."""


def check(source: str) -> str | None:
    """Why a text is no permitted program, as `code: sentence`, or None."""
    if len(source) > MAX_CHARACTERS:
        return f"size: a program has at most {MAX_CHARACTERS:,} characters, not {len(source):,}"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"syntax: {error}"
    for node in ast.walk(tree):
        for problem in _problems(node):
            return f"{problem} (line {getattr(node, 'lineno', 1)})"
    classes = _searchers(tree)
    if len(classes) != 1:
        return f"contract: a program has one class that derives from Searcher, not {len(classes)}"
    methods = {item.name: item for item in classes[0].body if isinstance(item, ast.FunctionDef)}
    if "search" not in methods:
        return f"contract: class {classes[0].name} has no method search(self, view)"
    if not any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(methods["search"])):
        return f"contract: {classes[0].name}.search never yields a row"
    return None


def _searchers(tree: ast.Module) -> list[ast.ClassDef]:
    return [
        item
        for item in tree.body
        if isinstance(item, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Searcher" for base in item.bases)
    ]


def _problems(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                if ALLOWED.get(alias.name, frozenset()) is not None:
                    yield f"import: {alias.name} may not be imported; allowed are {', '.join(ALLOWED)}"
        case ast.ImportFrom(module=module, names=names, level=level):
            known = ALLOWED.get(module or "", frozenset())
            for alias in names:
                if level or (known is not None and alias.name not in known) or alias.name.startswith(("*", "_")):
                    yield f"import: {alias.name} may not be imported from {module or '.'}"
        case ast.Name(id=name) if name in FORBIDDEN_NAMES or (name.startswith("__") and name not in DUNDERS):
            yield f"name: {name} may not be used"
        case ast.Attribute(attr=name) if name in FORBIDDEN_ATTRIBUTES or (name.startswith("_") and not _own(node)):
            yield f"attribute: .{name} may not be used"
        case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=name) if not _of_self(node):
            yield f"attribute: only attributes of self may be set, not .{name}"
        case ast.MatchClass():
            yield "syntax: a pattern may not look at attributes"
        case ast.FunctionDef(name=name) if name.startswith("__") and name not in DUNDERS:
            yield f"name: {name} may not be defined"
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            yield "syntax: a program is not asynchronous"
        case ast.ExceptHandler(type=None):
            yield "syntax: an except clause names what it catches"
        case ast.Global() | ast.Nonlocal():
            yield "syntax: global and nonlocal may not be used"
        case _:
            return


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _own(node: ast.Attribute) -> bool:
    """Whether an attribute with an underscore is the program's own."""
    return _of_self(node) and not node.attr.startswith("__")


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if name not in ALLOWED or level:
        raise ImportError(f"{name} may not be imported")
    return builtins.__import__(name, globals, locals, fromlist, level)


def load(source: str) -> Searcher:
    """The optimiser of a program. Raises `ProgramError`; also what the program raises when its module runs."""
    problem = check(source)
    if problem is not None:
        raise ProgramError(problem)
    safe = {name: value for name, value in vars(builtins).items() if name not in FORBIDDEN_NAMES}
    scope: dict[str, Any] = {"__builtins__": {**safe, "__import__": _import}, "__name__": "designed"}
    exec(compile(source, "<designed>", "exec"), scope)
    made = scope[_searchers(ast.parse(source))[0].name]()
    if not isinstance(made, Searcher):
        raise ProgramError("contract: the class does not derive from the Searcher of this package")
    return made
