"""Run `qkv` in processes forked from one that has imported it: `python -m tests.cli.forked ADDRESS` is the server.

A forked process has arguments, a folder, variables, streams and an exit code of its own, like a started one, but needs
a tenth of the time. `python -I -S forked.py ADDRESS ARGUMENTS` is the client: it takes the place of `qkv`.
Signals to the client do not reach the forked process.
"""

import io
import json
import os
import select
import signal
import socket
import sys

STREAMS = (0, 1, 2)


def ask_server(address, arguments):
    """Let the server run `qkv` with the streams, the folder and the variables of this process; return the exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(connection, [len(request).to_bytes(8, "big")], STREAMS)
        connection.sendall(request)
        status = connection.recv(8)
    return int.from_bytes(status, "big", signed=True)


def serve(address):
    """Fork a process for each client, until the standard input of the server is closed."""
    import duckdb  # the first command that reads a table would import it
    import pyarrow.parquet  # noqa: F401

    import qkv.cli.ask
    import qkv.cli.commands
    import qkv.database  # noqa: F401
    from qkv.cli.main import main

    # Importing DuckDB 1.5 starts threads, for which a forked process would wait for ever when it ends.
    duckdb.default_connection().close()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(16)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([0, server], [], [])
            if 0 in ready:
                return
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                child = _fork(connection)
                if child:
                    connection.sendall(
                        os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]).to_bytes(8, "big", signed=True)
                    )
                    os._exit(0)
                main()
            connection.close()
            _collect_exited()


def _fork(connection):
    """Read a request and fork: return the process to wait for, or 0 in the new process, after setting it up."""
    size, streams, _, _ = socket.recv_fds(connection, 8, len(STREAMS))
    request = b""
    while len(request) < int.from_bytes(size, "big"):
        request += connection.recv(1 << 16)
    child = os.fork()
    if child == 0:
        connection.close()
        arguments, folder, variables = json.loads(request)
        for stream, number in zip(streams, STREAMS, strict=True):
            os.dup2(stream, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["qkv", *arguments]
        _open_streams(variables.get("PYTHONIOENCODING", "utf-8"))
    for stream in streams:
        os.close(stream)
    return child


def _open_streams(encoding):
    """Open the streams as the interpreter does when it starts."""
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding)
    for number, name, errors in ((1, "stdout", None), (2, "stderr", "backslashreplace")):
        buffered = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        is_direct = name == "stderr" or os.isatty(number)
        setattr(sys, name, io.TextIOWrapper(buffered, encoding, errors, line_buffering=is_direct))


def _collect_exited():
    """Collect processes that have ended, with the CPU time that they took."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask_server(sys.argv[1], sys.argv[2:]))
