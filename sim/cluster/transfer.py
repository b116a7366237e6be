"""KV on its way from the engine that computed a prompt to the one that continues it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """What joins a prefill engine and a decode engine.

    Attributes:
        bandwidth: bytes/s from one GPU to another.   latency: seconds of a transfer, beside its bytes.
        senders, receivers: GPUs of an engine among which the KV of one request lies, on either side.
        bytes_per_token: of a token, on all receivers together: each gets what it keeps, also where several keep the same.
        layers: of the model.
        bytes_per_request: of recurrent states, likewise.
        overlap: what is sent while the rest is being computed: `none`, `chunks` or `layers`.
    """

    bandwidth: float
    latency: float
    senders: int
    receivers: int
    bytes_per_token: int
    layers: int
    overlap: str = "none"
    bytes_per_request: int = 0

    @property
    def rate(self) -> float:
        """Bytes/s of one transfer: every GPU on the side with fewer has an adapter at work."""
        return self.bandwidth * min(self.senders, self.receivers)

    def size(self, tokens: int) -> int:
        """Bytes of one transfer; nothing where nothing is lacking."""
        return tokens * self.bytes_per_token + self.bytes_per_request if tokens else 0

    def seconds(self, tokens: int) -> float:
        """Of one transfer on links that nobody else uses, nothing of it hidden."""
        return self.latency + self.size(tokens) / self.rate


class Links:
    """The network adapters of all engines: transfers of the same adapters go one after another.

    Args:
        path: between any two engines.   senders, receivers: engines on either side.
        send_lanes, receive_lanes: requests of an engine whose KV lies on different GPUs (ranks of attention data parallelism).

    Attributes:
        busy: seconds for which an adapter sent, all together.   bytes: that were sent.
    """

    def __init__(self, path: Path, senders: int, receivers: int, send_lanes: int = 1, receive_lanes: int = 1) -> None:
        self.path = path
        self._out = [[0.0] * send_lanes for _ in range(senders)]
        self._in = [[0.0] * receive_lanes for _ in range(receivers)]
        self.busy, self.bytes = 0.0, 0

    def book(
        self, sender: int, receiver: int, tokens: int, ready: float, began: float, last: int
    ) -> tuple[float, float]:
        """Send the KV of `tokens` tokens as soon as the adapters are free.

        Args:
            ready: when all of it is computed and may be sent.
            began: when the first of it was, where it is sent as it is made.
            last: tokens of it that the last step computed.

        Returns:
            When it begins and when all of it is there.
        """
        if not tokens:
            return ready, ready
        path, out, into = self.path, self._out[sender], self._in[receiver]
        here, there = out.index(min(out)), into.index(min(into))
        size = path.size(tokens) / path.rate
        self.bytes += path.size(tokens)
        tail = {"none": size, "chunks": size * min(last / tokens, 1.0), "layers": size / path.layers}[path.overlap]
        start = max(out[here], into[there], ready if path.overlap == "none" else began)
        free = max(start + size, ready + tail)
        out[here] = into[there] = free
        self.busy += size
        return start, free + path.latency
