"""A client that dies before a request that changes something, as a process that is killed does."""

import threading

from ignitetf.errors import ConnectError
from ignitetf.net.channel import Channel
from ignitetf.wire.codes import OpCode

CHANGES = {
    OpCode.CACHE_PUT,
    OpCode.CACHE_PUT_ALL,
    OpCode.CACHE_PUT_IF_ABSENT,
    OpCode.CACHE_REMOVE_KEY,
    OpCode.CACHE_DESTROY,
}
WORDS = (b"CREATE ", b"DROP ", b"ALTER ")


class Death:
    """The process dies before a request that changes something, the `at`th of them.

    Attributes:
        changes: How many there were.
    """

    def __init__(self, patch, client, at, ops=CHANGES):
        self.changes, self.dead = 0, False
        send = Channel.send

        def sending(channel, op, *buffers):
            # Those of the test itself go on.
            if channel.settings is not client.settings:
                return send(channel, op, *buffers)
            if self.dead:
                raise ConnectError("dead")
            if op in ops or (
                op == OpCode.QUERY_SQL_FIELDS
                and any(word in b"".join(map(bytes, buffers)) for word in WORDS)
            ):
                self.changes += 1
                if self.changes == at:
                    self.dead = True
                    if threading.current_thread() is threading.main_thread():
                        raise KeyboardInterrupt
                    raise ConnectError("dead")
            return send(channel, op, *buffers)

        patch.setattr(Channel, "send", sending)
