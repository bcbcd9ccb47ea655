"""A store for the ledger: a real server, and a proxy before it that can be cut off."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import pytest

SERVER = shutil.which("redis-server") or shutil.which("valkey-server")
in_a_store = pytest.mark.skipif(SERVER is None, reason="needs redis-server or valkey-server, which is not installed")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Store:
    """A server of Redis or Valkey, which keeps nothing on the disk."""

    def __init__(self, *options):
        self.port, self._options = free_port(), options
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = tempfile.TemporaryDirectory()
        self.start()

    def start(self):
        line = [SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder.name]
        self._process = subprocess.Popen([*line, *self._options], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert time.monotonic() < end
            time.sleep(0.02)

    def stop(self):
        self._process.kill()
        self._process.wait()

    def close(self):
        self.stop()
        self._folder.cleanup()


@contextlib.contextmanager
def store(*options):
    one = Store(*options)
    try:
        yield one
    finally:
        one.close()


class Proxy:
    """Passes bytes on to a store; `cut` says whether requests, answers or both get lost, as on a broken network."""

    def __init__(self, port):
        self._port, self.cut = port, ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._port))
                for pair in ((client, there, "requests"), (there, client, "answers")):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, target, what):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if what not in self.cut:
                    target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()
