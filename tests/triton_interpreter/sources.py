"""The source of kernels, as the interpreter runs it: read and parsed once a file."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from triton.runtime import interpreter
from triton.runtime.interpreter import ASTTransformer, FunctionRewriter


class Ranges(ASTTransformer):
    """What is assigned is a tensor, and `range` is the language's own."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id != "range":
            return node
        language = ast.Name(id="tl", ctx=ast.Load())
        return ast.Attribute(value=language, attr="range", ctx=ast.Load())


@cache
def functions_of(path: str) -> dict[int, ast.FunctionDef]:
    """The functions of a file, by their first lines, which are decorators'."""
    nodes = ast.walk(ast.parse(Path(path).read_text()))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {min(each.lineno for each in (node, *node.decorator_list)): node for node in functions}


def rewritten(self: FunctionRewriter) -> Any:
    function: Any = self.fn
    path = function.__code__.co_filename
    node = functions_of(path)[function.__code__.co_firstlineno]
    node.decorator_list = []
    module = ast.fix_missing_locations(ast.Module([Ranges().visit(node)], []))
    names = function.__globals__
    names["interpreter_semantic"] = interpreter.interpreter_semantic
    found: dict[str, Any] = {}
    exec(compile(module, path, "exec"), names, found)
    return found[function.__name__]


def patch() -> None:
    FunctionRewriter.rewrite_ast = rewritten
