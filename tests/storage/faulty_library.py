"""lsm-db with faults: handles whose methods raise, and refused opens."""

from typing import Any

import lsm
import pytest

__all__ = ["FaultyHandle", "FaultyLibrary"]


class FaultyHandle:
    """A handle of the library; one of its methods may raise, before or after the real call."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.failing = ""
        self.after = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._handle, name)
        if name != self.failing:
            return real

        def fail(*arguments: object) -> object:
            if self.after:
                real(*arguments)
            raise OSError("Unspecified IO error")

        return fail


class FaultyLibrary:
    """The library during a test; ``handle`` is the one opened last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = lsm.LSM
        self.refusal = ""
        self.handle: FaultyHandle
        monkeypatch.setattr(lsm, "LSM", self.open)

    def open(self, *arguments: object, **options: object) -> FaultyHandle:
        """Open a file as the library does."""
        if self.refusal:
            raise Exception(self.refusal)  # the library raises a bare Exception with "Busy"
        self.handle = FaultyHandle(self._open(*arguments, **options))
        return self.handle

    def fail(self, method: str, *, after: bool) -> None:
        """Let a method of the open handle raise; the next handle works."""
        self.handle.failing, self.handle.after = method, after
