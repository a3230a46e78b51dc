"""Compile-time loops and branches for kernels written in plain Python.

`for i in static_range(...)` is expanded when the kernel is decorated, the index becoming a constant. An `if` whose test
names only compile-time integers keeps one branch. The expansion happens before numba sees the function, so the CUDA
target and the simulator run the same code.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from .deferred import resolved

static_range = range
"""Marks a loop for expansion; an ordinary range where `unroll` is not applied."""

_PURE_CALLS = {"min": min, "max": max, "abs": abs}


class _Expander(ast.NodeTransformer):
    """Replaces static loops, branches and names by their values in `env`."""

    def __init__(self, env: dict[str, Any], substitutions: dict[str, int] | None = None) -> None:
        self.env = env
        self.substitutions = substitutions or {}

    def _constant(self, node: ast.expr) -> Any:
        """Value of an expression over compile-time numbers; ValueError when it is not one."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                if part.id not in _PURE_CALLS and not isinstance(self.env.get(part.id), (int, float)):
                    raise ValueError(part.id)
            elif isinstance(part, ast.Call):
                if not (isinstance(part.func, ast.Name) and part.func.id in _PURE_CALLS):
                    raise ValueError("call")
            elif isinstance(part, (ast.Attribute, ast.Subscript)):
                raise ValueError("attribute")
        expression = ast.Expression(ast.fix_missing_locations(copy.deepcopy(node)))
        return eval(compile(expression, "<static>", "eval"), {"__builtins__": {}}, {**_PURE_CALLS, **self.env})

    def _body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            out += result if isinstance(result, list) else [] if result is None else [result]
        return out

    def visit_For(self, node: ast.For) -> Any:
        call = node.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "static_range"):
            return self.generic_visit(node)
        assert isinstance(node.target, ast.Name)
        name = node.target.id
        out: list[ast.stmt] = []
        for value in range(*[self._constant(argument) for argument in call.args]):
            inner = _Expander({**self.env, name: value}, {**self.substitutions, name: value})
            out += inner._body(copy.deepcopy(node.body))
        return out

    def visit_If(self, node: ast.If) -> Any:
        try:
            taken = self._constant(node.test)
        except ValueError:
            return self.generic_visit(node)
        return self._body(node.body if taken else node.orelse) or ast.copy_location(ast.Pass(), node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        try:
            taken = self._constant(node.test)
        except ValueError:
            return self.generic_visit(node)
        return self.visit(node.body if taken else node.orelse)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        result = self.generic_visit(node)
        assert isinstance(result, ast.expr)
        try:
            return ast.copy_location(ast.Constant(self._constant(result)), node)
        except ValueError:
            return result

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load) and node.id in self.substitutions:
            return ast.copy_location(ast.Constant(self.substitutions[node.id]), node)
        return node


class Unrolled:
    """A kernel's Python function, expanded when it is first needed: a kernel found in the cache never is."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self.__name__ = name
        self._expanded: Callable[..., Any] | None = None

    def expand(self) -> Callable[..., Any]:
        """The expanded function; it carries its text as `static_source`."""
        if self._expanded is None:
            self._expanded = _expand(self._function, self.__name__)
        return self._expanded


def unroll(name: str) -> Callable[[Callable[..., Any]], Unrolled]:
    """Decorator that expands the static parts of a kernel and renames it to `name`.

    The name must spell the kernel's whole configuration: two kernels that differ only in constants have equal bytecode.
    """
    return lambda function: Unrolled(function, name)


def _expand(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    namespace = {name: resolved(value) for name, value in function.__globals__.items()}
    if function.__closure__:
        for free_name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            namespace[free_name] = resolved(cell.cell_contents)
    # A name that the function assigns is not static, whatever its value outside.
    assigned = {argument.arg for argument in definition.args.args}
    assigned |= {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    env = {k: v for k, v in namespace.items() if isinstance(v, (int, float)) and k not in assigned}
    definition.body = _Expander(env)._body(definition.body)
    definition.name = name
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    exec(compile(tree, inspect.getsourcefile(function) or "<kernel>", "exec"), namespace)
    expanded: Callable[..., Any] = namespace[name]
    expanded.__qualname__ = name
    expanded.static_source = ast.unparse(tree)  # type: ignore[attr-defined]
    return expanded
