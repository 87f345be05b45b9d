"""llama.cpp as a worker: all requests at once, as its own server runs them, greedily."""

from __future__ import annotations

from pathlib import Path

from llama_library import Llama, steps, version
from worker_loop import MAX_MODEL_LEN, Work, serve

MAX_SEQUENCES = 8


class LlamaCpp:
    def __init__(self, model: str, library: str) -> None:
        self.version = version(Path(library))
        context = MAX_MODEL_LEN // MAX_SEQUENCES
        self._llama = Llama(Path(library), model, MAX_SEQUENCES, context)

    def reset(self) -> None:
        """Nothing is kept from one work to the next."""

    def run(self, work: Work) -> int:
        self._llama.clear()
        answers = self._read_prompts(work)
        lengths = [len(prompt) for prompt, _ in work]
        running = [number for number, (_, count) in enumerate(work) if count > 1]
        while running:
            self._llama.decode(
                [
                    (answers[number][-1], lengths[number] + len(answers[number]) - 1, number, True)
                    for number in running
                ]
            )
            for row, number in enumerate(running):
                answers[number].append(self._llama.best(row))
            running = [number for number in running if len(answers[number]) < work[number][1]]
        return sum(map(len, answers))

    def _read_prompts(self, work: Work) -> list[list[int]]:
        """The first token of each answer."""
        entries = [
            (token, position, number, position == len(prompt) - 1)
            for number, (prompt, _) in enumerate(work)
            for position, token in enumerate(prompt)
        ]
        answers: list[list[int]] = [[] for _ in work]
        for step in steps(entries):
            self._llama.decode(step)
            for row, (_, _, number, is_last) in enumerate(step):
                if is_last:
                    answers[number].append(self._llama.best(row))
        return answers


if __name__ == "__main__":
    serve(LlamaCpp)
