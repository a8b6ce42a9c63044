"""The socket that riverrun's own servers listen on."""

import asyncio
import socket

from riverrun.cluster.loopback import listening_socket


def test_answers_do_not_wait_for_delayed_acknowledgements() -> None:
    """asyncio turns Nagle's algorithm off, but only for a socket that says it is TCP."""

    async def main() -> int:
        found = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made = writer.get_extra_info("socket")
            found.set_result(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listening_socket(0) as made:
            async with await asyncio.start_server(connected, sock=made) as server:
                _, writer = await asyncio.open_connection(*made.getsockname())
                value = await found
                writer.close()
                server.close()
                return int(value)

    assert asyncio.run(main())
