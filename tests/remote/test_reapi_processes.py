"""The engine on the Remote Execution API: its URLs, processes that fork, and what the client prints and needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cachec.errors import ConfigError
from cachec.remote.engines.reapi_link import grpc
from cachec.remote.urls import parse
from tests.remote.certificates import certificate
from tests.remote.reapi_server import ReapiSite, serving_reapi
from tests.remote.server import refusing
from tests.remote.test_engines import engine


@pytest.fixture
def site() -> Iterator[ReapiSite]:
    with serving_reapi() as site:
        yield site


@pytest.mark.parametrize(
    ("url", "instance", "port"),
    [
        ("reapi://host", "", 9092),
        ("reapi://host/", "", 9092),
        ("reapis://host/main", "/main", 443),
        ("reapi://host:8980/a/b/", "/a/b", 8980),
        ("reapi://[::1]:1/a%2Db", "/a-b", 1),
    ],
)
def test_urls(url: str, instance: str, port: int) -> None:
    address = parse(url, "default", {})
    assert (address.path, address.port) == (instance, port)


@pytest.mark.parametrize(
    "url", ["reapi:///x", "reapi://host/blobs", "reapi://host/a/uploads/b", "reapi://host//a", "reapi://h%41/x"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse(url, "default", {})


def run(code: str, **environ: str) -> str:
    environment = {**os.environ, **environ}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    return done.stdout


_BEGIN = (
    "import os, sys, time, threading\n"
    "from cachec.remote.engines import engine_of\nfrom cachec.remote.schemes import import_clients\n"
    "from cachec.remote.urls import parse\n"
    "from cachec.errors import StoreFault\n"
    "def made():\n    return engine_of(parse(os.environ['AT'], 'default', {}))\n"
    "def ask(engine):\n    return engine.get_row('0' * 64, time.monotonic() + 60)\n"
)


def test_a_child_does_not_use_the_threads_of_its_parent(site: ReapiSite) -> None:
    """It would hang, or end with a signal: and it ends as it would without."""
    code = _BEGIN + (
        "engine = made()\nask(engine)\n"
        "busy = [threading.Thread(target=lambda: [ask(engine) for _ in range(300)]) for _ in range(3)]\n"
        "[each.start() for each in busy]\n"
        "for _ in range(20):\n"
        "    if not (child := os.fork()):\n"
        "        for each in (engine, made()):\n"
        "            try:\n                ask(each)\n                os._exit(2)\n"
        "            except StoreFault as fault:\n                assert fault.fault.value == 'remote-skipped'\n"
        "        engine.close()\n"
        "        sys.exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "[each.join() for each in busy]\n"
        "print(ask(engine))\n"
    )
    assert run(code, AT=site.url) == "None\n"


def test_children_of_a_process_that_only_imported_the_client_ask(site: ReapiSite) -> None:
    """As the server of ``cachec exec`` has it."""
    code = _BEGIN + (
        "engine = made()\nassert 'grpc' not in sys.modules\n"
        "before = dict(os.environ)\nimport_clients(['reapi'])\n"
        "assert 'grpc' in sys.modules\nassert os.environ == before\n"
        "for each in (engine, made()):\n"
        "    if not (child := os.fork()):\n"
        "        os._exit(ask(each) is not None)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "print(ask(engine))\n"
    )
    assert run(code, AT=site.url) == "None\n"


def test_nothing_is_printed_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    code = _BEGIN + (
        "for _ in range(2):\n"
        "    try:\n        ask(made())\n    except StoreFault as fault:\n        print(fault.fault.value)\n"
    )
    key, cert = certificate()
    with serving_reapi(grpc.ssl_server_credentials([(key, cert)])) as site:
        assert run(code, AT=site.url) == "remote-refused\n" * 2
    assert run(code, AT=refusing().replace("http", "reapi")) == "remote-unreachable\n" * 2
    monkeypatch.setattr("cachec.remote.engines.reapi.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"cachec\[reapi\]"):
        engine("reapi://host/x")
