"""The newest steps of a stream, for readers that come and go at their own pace."""

SIZE = 2000  # steps kept


class Ring:
    """Texts numbered from 1, of which the newest are kept; one thread adds, any number read.

    There is no lock, so that adding never waits: a slot is replaced at once and whole, and a reader
    tells by its number whether it still holds what was looked for.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._slots: list[tuple[int, str]] = [(0, "")] * size
        self.newest = 0

    def add(self, text: str) -> None:
        number = self.newest + 1
        self._slots[number % len(self._slots)] = (number, text)
        self.newest = number

    def after(self, number: int) -> list[tuple[int, str]]:
        """What came after this number and is still there, in order and without holes."""
        newest, size = self.newest, len(self._slots)
        wanted = range(max(number, newest - size) + 1, newest + 1)
        found = [(k, self._slots[k % size]) for k in wanted]
        return [slot for k, slot in found if slot[0] == k]
