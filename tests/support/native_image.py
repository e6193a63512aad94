"""A folder that stands for the images of engines that schedule by themselves: none of them runs on a test machine.

It has the modules and the programs that the operator's commands start, and all of them end in one small server: it
listens where it is told, is healthy, and tells at /started how it was started, which is what the tests ask. Nothing is
scheduled here.
"""

from __future__ import annotations

import sys
from pathlib import Path

MODULES = ("vllm.entrypoints.openai.api_server", "sglang.launch_server", "lightllm.server.api_server")
MINDIE_HOME = "mindie"

_SERVER = '''\
"""Listens where the arguments, or MindIE's configuration, say; tells how it was started."""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    started = {}

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/started":
            self.wfile.write(json.dumps(self.started).encode())

    def log_message(self, *_):
        pass


def serve(started, host, *ports):
    Handler.started = started
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for port in ports:
        threading.Thread(target=ThreadingHTTPServer((host, port), Handler).serve_forever, daemon=True).start()
    signal.pause()


def by_arguments():
    args = sys.argv[1:]
    serve({"args": args}, args[args.index("--host") + 1], int(args[args.index("--port") + 1]))


def by_configuration():
    with open(os.environ["MIES_CONFIG_JSON_PATH"]) as file:
        config = json.load(file)
    server = config["ServerConfig"]
    serve(config, os.environ["MIES_CONTAINER_IP"], server["port"], server["managementPort"], server["metricsPort"])
'''


def make_native_image(folder: Path) -> Path:
    """Make it in an empty folder, which is also where MindIE's installation (`MINDIE_HOME`) lies."""
    library = folder / "lib"
    for module in MODULES:
        path = library / Path(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True)
        path.write_text("from stand_in import by_arguments\n\nby_arguments()\n")
    (library / "stand_in.py").write_text(_SERVER)
    _program(folder / "bin" / "python3", f'PYTHONPATH={library} exec {sys.executable} "$@"')
    home = folder / MINDIE_HOME
    _program(home / "bin" / "mindieservice_daemon", 'exec python3 -c "import stand_in; stand_in.by_configuration()"')
    (home / "conf").mkdir()
    (home / "conf" / "config.json").write_text('{"ServerConfig": {"port": 1025}, "BackendConfig": {}}')
    return folder


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
