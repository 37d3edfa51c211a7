"""One fake broker: its socket, its connections, and the faults that happen to bytes.

Owns frames, cuts, stalls and the order of answers. Must not know what a request means: that is the
handlers'. Invariant: requests of a connection are carried out and answered one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import traceback
from typing import TYPE_CHECKING, Any

from moldau.protocol import ApiKey, ErrorCode, registry
from moldau.protocol.errors import ProtocolError
from moldau.protocol.headers import decode_request_header, encode_response
from moldau.protocol.messages.p18_api_versions import ApiVersion, ApiVersionsResponse
from moldau.runtime.network import Listener
from tests.fake_broker.authentication import Session
from tests.fake_broker.context import Context, fit_version
from tests.fake_broker.faults import (
    AnswerError,
    Change,
    CutRequest,
    CutResponse,
    Fault,
    Garbage,
    Replace,
    Run,
    Stall,
    Throttle,
    WrongCorrelation,
)
from tests.fake_broker.fetch_sessions import FetchSessions
from tests.fake_broker.recorder import Received
from tests.fake_broker.versions import Versions

if TYPE_CHECKING:
    from tests.fake_broker.cluster import FakeCluster

HOST = "127.0.0.1"
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ihhi")
_FRAMED = struct.Struct(">ii")
_FIRST_KIP_511_VERSION = 3


class _Ended(Exception):
    """This connection is over."""


class FakeNode:
    """A broker that listens on its own port; the port stays the same over restarts."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.port = 0
        self.connections: set[_Connection] = set()
        self.accepted_count = 0
        self.fetch_sessions = FetchSessions()
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        """host:port"""
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether it listens."""
        return self._listener is not None

    @property
    def rack(self) -> str | None:
        """Its rack, by the cluster's settings."""
        return self.cluster.settings.racks.get(self.node_id)

    async def start(self) -> None:
        """Listen."""
        assert self._listener is None, "it runs already"
        context = self.cluster.security.server_context()
        self._listener = await self.cluster.ports.network.listen(
            self._stream, HOST, self.port, handshakes=_Handshakes(context) if context else None
        )
        self.port = self._listener.port

    async def stop(self) -> None:
        """Refuse connections and end those there are."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        self.fetch_sessions.forget_all()
        tasks = [connection.task for connection in self.connections]
        for connection in tuple(self.connections):
            connection.end(reset=False)
        await asyncio.gather(*tasks, return_exceptions=True)

    def disconnect_all(self, *, reset: bool = False) -> None:
        """End every connection; new ones are welcome."""
        for connection in tuple(self.connections):
            connection.end(reset=reset)

    def _stream(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:
            writer.transport.abort()
            return
        self.accepted_count += 1
        connection = _Connection(self, reader, writer, self.accepted_count)
        self.connections.add(connection)
        connection.task = asyncio.ensure_future(connection.run())
        connection.task.add_done_callback(lambda task: self._ended(connection, task))

    def _ended(self, connection: _Connection, task: asyncio.Task[None]) -> None:
        self.connections.discard(connection)
        if not task.cancelled() and task.exception() is not None:
            trace = "".join(traceback.format_exception(task.exception()))
            self.cluster.recorder.problem(f"the fake broker itself failed: {trace}")

    def advertised(self) -> Versions:
        """The versions this broker names: the release's, of the APIs that the fake can do."""
        from tests.fake_broker.handlers import HANDLERS

        table = self.cluster.versions_of(self.node_id)
        served = {}
        for key, (lowest, highest) in table.items():
            if key in HANDLERS or key in _OWN:
                served[key] = (lowest, min(highest, registry.request_class(key).MAX_VERSION))
        return served


_OWN = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class _Handshakes:
    """Every client may begin one."""

    timeout_ms = 10_000.0

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    async def context(self) -> ssl.SSLContext:
        return self._context

    def begin(self, host: str, handshake: asyncio.Task[None]) -> bool:
        return True

    def end(self, host: str, error: OSError | None, *, is_late: bool) -> None:
        pass


class _Connection:
    """One client's connection."""

    task: asyncio.Task[None]

    def __init__(
        self,
        node: FakeNode,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection_id: int,
    ) -> None:
        self.node = node
        self.cluster = node.cluster
        self.connection_id = connection_id
        self._reader = reader
        self._writer = writer
        self._session = Session(self.cluster.security)

    async def run(self) -> None:
        try:
            while True:
                await self._serve_one()
        except _Closing:
            self._writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._writer.wait_closed()
        except (_Ended, asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._cut(reset=False)

    def end(self, *, reset: bool) -> None:
        """Close it, with RST when asked."""
        self._cut(reset=reset)
        self.task.cancel()

    def _cut(self, *, reset: bool) -> None:
        transport = self._writer.transport
        sock = transport.get_extra_info("socket")
        if reset and sock is not None:
            linger = struct.pack("ii", 1, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if reset or sock is not None:
            transport.abort()
        else:
            transport.close()  # on the virtual network `abort` is always a reset

    # -- one request ----------------------------------------------------------------------------

    async def _serve_one(self) -> None:
        head = await self._reader.readexactly(_SIZE.size)
        (size_bytes,) = _SIZE.unpack(head)
        if not _HEAD.size - _SIZE.size <= size_bytes <= self.cluster.settings.max_request_bytes:
            # Whatever this is (TLS to a plaintext port, say), a real broker closes too.
            raise _Ended
        head += await self._reader.readexactly(_HEAD.size - _SIZE.size)
        _, api_key, _, _ = _HEAD.unpack(head)
        cut = self.cluster.faults.cut_before_reading(api_key, self.node.node_id)
        if cut is not None:
            await self._cut_request(cut, len(head), _SIZE.size + size_bytes)
        body = await self._reader.readexactly(size_bytes - (_HEAD.size - _SIZE.size))
        received = self._decode(head[_SIZE.size :] + body)
        if received is None:
            return
        await self._answer(received)

    async def _cut_request(self, cut: CutRequest, read_bytes: int, size_bytes: int) -> None:
        missing = min(cut.at_byte, size_bytes) - read_bytes
        if missing > 0:
            await self._reader.readexactly(missing)
        self.end(reset=cut.reset)
        raise _Ended

    def _decode(self, frame: bytes) -> Received | None:
        problem = self.cluster.recorder.problem
        try:
            header, position = decode_request_header(frame)
            if not registry.is_known(header.api_key):
                problem(f"a request of API {header.api_key}, which does not exist")
                raise _Ended
            api_key = ApiKey(header.api_key)
            lowest, highest = self.node.advertised().get(api_key, (0, -1))
            if not lowest <= header.api_version <= highest:
                self._refuse_version(api_key, header)
                return None
            kind = registry.request_class(api_key)
            message, end = kind.decode(frame, header.api_version, position)
            if end != len(frame):
                problem(f"{len(frame) - end} bytes follow a {kind.__name__}")
                raise _Ended
        except ProtocolError as error:
            problem(f"a request that cannot be read: {error}")
            raise _Ended from error
        received = Received(
            self.node.node_id,
            self.connection_id,
            api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            message,
            asyncio.get_running_loop().time() * 1000,
            len(frame) + _SIZE.size,
        )
        self.cluster.recorder.note(received)
        return received

    def _refuse_version(self, api_key: ApiKey, header: Any) -> None:
        """ApiVersions gets an answer of version 0, which names the APIs since KIP-511; anything
        else ends the connection, as a broker does.
        """
        if api_key != ApiKey.API_VERSIONS:
            self.cluster.recorder.problem(
                f"{api_key.name} of version {header.api_version}, which is not advertised"
            )
            raise _Ended
        highest = self.node.advertised()[ApiKey.API_VERSIONS][1]
        refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        if highest >= _FIRST_KIP_511_VERSION:
            refusal.api_keys = [ApiVersion(api_key=api_key, min_version=0, max_version=highest)]
        self._writer.writelines(
            encode_response(refusal, api_version=0, correlation_id=header.correlation_id)
        )

    async def _answer(self, received: Received) -> None:
        if not self._session.allows(received.api_key):
            self.cluster.recorder.problem(f"{received.api_key.name} without authentication")
            raise _Ended
        faults = self.cluster.faults.take(received)
        for fault in faults:
            if isinstance(fault.action, Run):
                fault.action.function()
            elif isinstance(fault.action, Stall) and not fault.action.after_apply:
                await fault.released()
        errors = tuple(fault.action for fault in faults if isinstance(fault.action, AnswerError))
        context = Context(self.cluster, self.node, received, errors)
        response = await self._carry_out(context, faults)
        if response is not None:
            await self._send(received, response, faults)
        elif self._session.has_failed:
            raise _Ended

    async def _carry_out(self, context: Context, faults: list[Fault]) -> Any:
        from tests.fake_broker.handlers import HANDLERS

        received = context.received
        for fault in faults:
            if isinstance(fault.action, Replace):
                replaced = fault.action.answer(received.message)
                if replaced is None:
                    raise _Ended
                return replaced
        response: Any
        if received.api_key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            response = self._session.answer(context)
        elif received.api_key == ApiKey.API_VERSIONS:
            from tests.fake_broker.metadata import api_versions

            response = api_versions(context)
        else:
            response = await HANDLERS[received.api_key](context, received.message)
        for fault in faults:
            if isinstance(fault.action, Change):
                fault.action.change(response)
            elif isinstance(fault.action, Throttle):
                response.throttle_time_ms = fault.action.throttle_time_ms
        return response

    async def _send(self, received: Received, response: Any, faults: list[Fault]) -> None:
        correlation_id = received.correlation_id
        for fault in faults:
            if isinstance(fault.action, WrongCorrelation):
                correlation_id += fault.action.delta
        fit_version(response, received.api_version)
        data = b"".join(
            bytes(part)  # type: ignore[arg-type]
            for part in encode_response(
                response, api_version=received.api_version, correlation_id=correlation_id
            )
        )
        for fault in faults:
            action = fault.action
            if isinstance(action, CutResponse):
                self._writer.write(data[: action.at_byte])
                await self._writer.drain()
                if action.reset:
                    self.end(reset=True)
                raise _Closing
            if isinstance(action, Stall) and action.after_apply:
                self._writer.write(data[: action.after_bytes])
                await fault.released()
                data = data[action.after_bytes :]
            elif isinstance(action, Garbage):
                data = action.data
                if action.framed:
                    data = _FRAMED.pack(len(data) + 4, received.correlation_id) + data
        self._writer.write(data)
        if self._session.has_failed:
            raise _Closing
        await self._writer.drain()


class _Closing(_Ended):
    """This connection is over, and what was written is still to be sent."""
