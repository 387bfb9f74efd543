"""How many round trips follow one another, whatever each of them takes."""

import contextlib
import threading

from ignitetf.net.channel import Channel

_APART = ("ignitetf-lease", "igfs-leases")  # threads that nobody waits for


class RoundTrips:
    """Counts them: a request belongs to the round trip after that of the last answer before it.

    Attributes:
        count: Round trips of which at least one answer came.
    """

    def __init__(self):
        self.count = 0
        self._sent, self._lock = {}, threading.Lock()

    def sent(self, request):
        with self._lock:
            self._sent[request] = self.count + 1

    def received(self, request):
        with self._lock:
            self.count = max(self.count, self._sent.pop(request, 0))


@contextlib.contextmanager
def counted(monkeypatch):
    """Count those of all connections during the block.

    The delay must be longer than a busy machine holds up a thread: a request that is sent only after
    the answer to another's, for which it did not wait, counts as one more.
    """
    trips = RoundTrips()
    send, send_all, receive = Channel.send, Channel.send_all, Channel.receive
    exchanged, receive_any = Channel.exchanged, Channel.receive_any

    def sending(self, op, *buffers):
        number = send(self, op, *buffers)
        if threading.current_thread().name not in _APART:
            trips.sent((self, number))
        return number

    def sending_all(self, op, bodies):
        numbers = send_all(self, op, bodies)
        for number in numbers:
            trips.sent((self, number))
        return numbers

    def receiving(self, number, **options):
        answer = receive(self, number, **options)
        trips.received((self, number))
        return answer

    def receiving_any(self, **options):
        number, answer = receive_any(self, **options)
        trips.received((self, number))
        return number, answer

    def telling(self, sent, answered):
        """What went past the others, told afterwards."""
        sent, answered = list(sent), list(answered)
        for number in sent:
            trips.sent((self, number))
        for number in answered:
            trips.received((self, number))
        exchanged(self, sent, answered)

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "send", sending)
        patch.setattr(Channel, "send_all", sending_all)
        patch.setattr(Channel, "receive", receiving)
        patch.setattr(Channel, "receive_any", receiving_any)
        patch.setattr(Channel, "exchanged", telling)
        yield trips
