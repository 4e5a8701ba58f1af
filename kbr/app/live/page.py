"""The live page of one stream, as the command uses it."""

import json
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from kbr.app.live.address import Address
from kbr.app.live.ring import Ring
from kbr.app.live.server import LiveServer
from kbr.app.live.view import View
from kbr.app.text.plain import one_line
from kbr.core.filters.belief import Belief

FAREWELL = 1.0  # seconds at most that the command's end waits until open pages know of it


class LivePage:
    """Is served while the block lasts; every call shows one more step."""

    def __init__(self, address: Address, view: View, say: Callable[[str], None]) -> None:
        self.view, self.say, self.ring = view, say, Ring()
        self.server = LiveServer(address, self.ring, json.dumps(view.facts(), allow_nan=False))

    def __enter__(self) -> "LivePage":
        self.say(f"the live page is at {self.server.url}")
        return self

    def __call__(self, belief: Belief, shown: Mapping[str, Any], seconds: float) -> None:
        self.ring.add(self.view.step(belief, shown, seconds))

    def stay(self) -> None:
        """The input has ended: where somebody sits at a terminal, the page stays for him."""
        self._end("The input has ended.")
        if sys.stderr is not None and sys.stderr.isatty():
            self.say("the input has ended; all is written. The live page stays until Ctrl-C")
            threading.Event().wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.server.ending:
            words = "the reader of the output has gone" if _is_pipe(error) else str(error)
            self._end(f"The command has ended: {words.rstrip('.')}.", bad=True)
        self.server.end(self.server.ending, FAREWELL)
        self.server.close()

    def _end(self, words: str, *, bad: bool = False) -> None:
        self.server.end(json.dumps({"words": one_line(words), "bad": bad}))


def _is_pipe(error: BaseException | None) -> bool:
    return isinstance(error, BrokenPipeError)
