"""Server-sent events, as far as streams of completions use them (WHATWG HTML, section 9.2).

Bytes are split before they are decoded, so that a character cut in two by the network is whole again, and a line of any length
is one line.
"""

from __future__ import annotations

DONE = b"[DONE]"


class EventStream:
    """Cuts bytes into the `data` of events; comments (keep-alives) and other fields are dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The data of every event that is complete now."""
        text = self._rest + received if self._rest else received
        *lines, self._rest = text.split(b"\n")
        return self._events(lines)

    def end(self) -> list[bytes]:
        """What is left when the stream has ended without an empty line after its last event."""
        lines, self._rest = [self._rest, b""], b""
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")  # both line endings are allowed
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                events.append(b"\n".join(self._data) if len(self._data) > 1 else self._data[0])
                self._data = []
        return events
