"""A real nginx that keeps what is PUT, on the loopback, started by a test."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.needs import need

#: What docs/reference/remotes.md says is to be in the server's block.
LOCATION = "dav_methods PUT DELETE; create_full_put_path on; client_max_body_size 0;"

_CONFIGURATION = """
daemon off; master_process off; pid nginx.pid; {user}
events {{ worker_connections 64; }}
http {{
  access_log off; error_log error.log crit; default_type application/octet-stream;
  client_body_temp_path body; proxy_temp_path t1; fastcgi_temp_path t2; uwsgi_temp_path t3; scgi_temp_path t4;
  server {{
    listen 127.0.0.1:{port};
    location / {{ root {folder}/files; {location} {more} }}
  }}
}}
"""


@contextlib.contextmanager
def running_nginx(folder: Path, more: str = "", location: str = LOCATION) -> Iterator[str]:
    """The URL of a server; skips the test where there is none. more: what else its location says."""
    need("nginx")
    (folder / "files").mkdir(parents=True)
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    for _ in range(5):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        text = _CONFIGURATION.format(user=user, port=port, folder=folder, location=location, more=more)
        (folder / "nginx.conf").write_text(text)
        line = ["nginx", "-p", os.fspath(folder), "-c", "nginx.conf", "-g", "error_log stderr notice;"]
        process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        if any("start worker process" in line or "OS: Linux" in line for line in process.stderr):
            break
        process.wait()  # somebody was faster with the port
    else:
        raise AssertionError("nginx does not start")
    try:
        yield f"http://127.0.0.1:{port}/team"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
