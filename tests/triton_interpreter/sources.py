"""The source of kernels, as the interpreter runs it: read and parsed once a file."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from triton.runtime import interpreter
from triton.runtime.interpreter import ASTTransformer, FunctionRewriter

from triton_interpreter.programs import span


@cache
def functions_of(path: str) -> dict[int, ast.FunctionDef]:
    """The functions of a file, by their first lines, which are decorators'."""
    found = {}
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.FunctionDef):
            first = node.decorator_list[0] if node.decorator_list else node
            found[first.lineno] = node
    return found


def rewritten(self: FunctionRewriter) -> Any:
    """What is assigned is a tensor, and `range` is the language's own."""
    function: Any = self.fn
    path = function.__code__.co_filename
    node = functions_of(path)[function.__code__.co_firstlineno]
    node.decorator_list = []
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id == "range":
            each.id = "span"
    module = ast.fix_missing_locations(ast.Module([ASTTransformer().visit(node)], []))
    names = function.__globals__
    names |= {"interpreter_semantic": interpreter.interpreter_semantic, "span": span}
    found: dict[str, Any] = {}
    exec(compile(module, path, "exec"), names, found)
    return found[function.__name__]


def patch() -> None:
    FunctionRewriter.rewrite_ast = rewritten
