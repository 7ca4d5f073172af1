"""A rival in a process of its own, alive for the whole benchmark: loading is not counted, order is per prompt."""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from selfspec.measure.timing import Answer, Ask, Column, ColumnError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PATIENCE = 600.0  # seconds until a worker that says nothing counts as failed


class RivalMissingError(Exception):
    """The rival is not installed there."""


class WorkerColumn(Column):
    """Asks a worker (`selfspec.measure.worker`) and waits for its line.

    Raises
    ------
    RivalMissingError
        The worker cannot import the rival, or its Python does not start.
    ColumnError
        It failed to load the model, or said nothing in time.
    """

    is_comparable = False  # another program, with weights and kernels of its own

    def __init__(self, label: str, command: Sequence[str], eos: Sequence[int], patience: float = PATIENCE) -> None:
        self.name = label
        self._eos, self._patience = list(eos), patience
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(  # noqa: S603 (a Python that the user named)
                list(command), stdin=pipe, stdout=pipe, stderr=self._log, encoding="utf-8"
            )
        except OSError as error:
            self._log.close()
            raise RivalMissingError(f"{command[0]!r} does not start: {error.strerror}") from error
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.about = self._ready()
        except Exception:
            self.close()
            raise

    def answer(self, ask: Ask, first: Callable[[], None]) -> Answer:
        """Send the prompt and wait for the tokens."""
        request = {
            "prompt": ask.prompt,
            "max_new_tokens": ask.max_new_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "eos": [] if ask.ignore_eos else self._eos,
        }
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ColumnError(self._last_words()) from None
        said = self._next()
        if "first" in said:
            first()
            said = self._next()
        try:
            return Answer(tuple(map(int, said["tokens"])), peak_bytes=int(said["peak_bytes"]))
        except (KeyError, TypeError, ValueError):
            raise ColumnError(f"its worker said {json.dumps(said)[:200]}") from None

    def close(self) -> None:
        """End the worker."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # what was not sent is of no use any more
                    continue

    def _ready(self) -> Mapping[str, str]:
        said = self._next()
        if "missing" in said:
            raise RivalMissingError(str(said["missing"]))
        if not isinstance(said.get("ready"), dict):
            raise ColumnError(f"its worker said {json.dumps(said)[:200]}")
        return {str(name): str(value) for name, value in said["ready"].items()}

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._patience)
        except queue.Empty:
            raise ColumnError(f"its worker said nothing for {self._patience:g} seconds") from None
        if line is None:
            raise ColumnError(self._last_words())
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise ColumnError(f"its worker said {line.strip()[:200]!r}, which is no JSON object")
        if "error" in said:
            raise ColumnError(str(said["error"]))
        return said

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.put(line)
        except ValueError:  # closed, or not UTF-8: the worker is of no use any more
            pass
        self._lines.put(None)

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"its worker ended with code {code}" + (f": {lines[-1]}" if lines else "")
