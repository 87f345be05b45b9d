"""The programs of a launch: those that go the same way through a kernel run together.

What is asked of a number, whether it is true or how often a loop is to run, has one answer for all
programs. Where it would have several, what they have stored is undone, and those of each answer run
again on their own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from triton.language import core
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from triton_interpreter.blocks import tensor_of
from triton_interpreter.memory import STORES

OF_LAUNCHES = ("num_warps", "num_stages", "num_ctas", "grid", "warmup")
"""What compilers are told, and no kernel."""
MOST_TOGETHER = 256
"""Programs: their tiles are to stay in a core's cache."""


class Parting(BaseException):
    """Programs go different ways, by these numbers: [programs]. Not an error of a kernel's."""

    def __init__(self, answers: Any) -> None:
        super().__init__()
        self.answers = answers


def one_answer(answers: Any) -> Any:
    """What all programs have there: [programs]."""
    if len(answers) > 1 and (answers != answers[0]).any():
        raise Parting(answers)
    return answers[0].item()


def is_true(given: Any) -> bool:
    require_number(given)
    return bool(one_answer(given.handle.data != 0))


def number_of(given: Any) -> Any:
    require_number(given)
    return one_answer(given.handle.data)


def require_number(given: Any) -> None:
    if given.type.is_block():
        raise ValueError(f"a block, {given.type}, where one number is asked for")


def span(first: Any, end: Any = None, step: Any = None, **_: Any) -> Any:
    """Numbers from first, or 0, to below end, as `range` has them; both may differ by program."""
    given: Any = (0, first, 1) if end is None else (first, end, 1 if step is None else step)
    begin, end, step = (getattr(each, "value", each) for each in given)
    step = int(step)
    starts, ends = (
        each.handle.data if isinstance(each, core.tensor) else np.array([each])
        for each in (begin, end)
    )
    count = max(0, one_answer(-((starts - ends) // step)))
    if len(starts) == 1:
        return range(starts.item(), starts.item() + count * step, step)
    steps = np.arange(count, dtype=starts.dtype) * step
    return (tensor_of(starts + further, begin.dtype) for further in steps)


@cache
def constants_of(function: Any) -> set[str]:
    """Arguments that a kernel has as they are given."""
    return {name for name, kind in function.__annotations__.items() if "constexpr" in str(kind)}


@cache
def defaults_of(function: Any) -> dict[str, Any]:
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))


def executor(self: Any, function: Any, names: Any, grid: Any, hooks: Any = ()) -> None:
    assert not hooks
    self.fn, self.arg_names, self.grid = function, names, grid


def run_all(self: Any, *args: Any, **kwargs: Any) -> None:
    """A float becomes infinite without a word, as on a device."""
    given = {**defaults_of(self.fn), **dict(zip(self.arg_names, args, strict=False))}
    unknown = kwargs.keys() - {*self.arg_names, *OF_LAUNCHES}
    if unknown:
        raise TypeError(f"a launch of {self.fn.__name__} takes no {', '.join(sorted(unknown))}")
    given |= {name: value for name, value in kwargs.items() if name in self.arg_names}
    constants = constants_of(self.fn)
    arguments = {
        name: value if name in constants else interpreter._implicit_cvt(value)
        for name, value in given.items()
    }
    sizes = self.grid(arguments) if callable(self.grid) else self.grid
    sizes = (*sizes, *(1,) * (3 - len(sizes)))
    interpreter.interpreter_builder.set_grid_dim(*sizes)
    programs = np.indices(sizes, dtype=np.int32).reshape(3, -1)
    with np.errstate(over="ignore"):
        for start in range(0, programs.shape[1], MOST_TOGETHER):
            run_together(self.fn, arguments, programs[:, start : start + MOST_TOGETHER])


def run_together(function: Any, arguments: dict[str, Any], programs: Any) -> None:
    """Run programs, [3, programs]: all of them, or part by part."""
    builder: Any = interpreter.interpreter_builder
    builder.grid_idx = [each if (each != each[0]).any() else each[:1] for each in programs]
    STORES.begin(is_sure=programs.shape[1] == 1)
    try:
        function(**arguments)
    except Parting as parting:
        STORES.undo()
        answers = parting.answers
    else:
        return
    for answer in np.unique(answers):
        run_together(function, arguments, programs[:, answers == answer])


def program_id(self: Any, axis: int) -> Any:
    return interpreter.TensorHandle(self.grid_idx[axis], core.int32)


def called(self: InterpretedFunction[Any], *args: Any, **kwargs: Any) -> Any:
    """A function within a kernel."""
    return self.rewrite()(*args, **kwargs)


def patch() -> None:
    interpreter.GridExecutor.__init__ = executor
    interpreter.GridExecutor.__call__ = run_all
    InterpretedFunction.__call__ = called
    InterpreterBuilder.create_get_program_id = program_id
