"""Whose results count: signatures of rows, by a key or by a shared secret."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from cachec import Reason
from cachec.cli import main
from cachec.errors import ConfigError
from cachec.events import day_files
from cachec.model import Fault
from cachec.remote.keys import keypair
from cachec.remote.trust import Trust
from cachec.remote.urls import parse
from tests.remote.conftest import Machine
from tests.remote.server import Site
from tests.remote.test_sharing import Make

ONE, OTHER = keypair("ci-1"), keypair("ci-2")
SECRET = "a secret of the team"

Setting = Callable[[str], None]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> Setting:
    def set_key(text: str) -> None:
        monkeypatch.setenv("CACHEC_REMOTE_KEY", text)

    return set_key


def sent(machine: Make, url: str) -> bytes:
    one = machine(url)
    value = one.call()[0]
    assert [each.put is not None and each.put.is_new for each in one.push()] == [True]
    return value


def test_what_a_trusted_key_signed_counts(machine: Make, url: str, key: Setting) -> None:
    key(ONE.secret)
    value = sent(machine, f"{url}&trust={ONE.public}")
    key("")
    for trusted in (ONE.public, f"{OTHER.public},{ONE.public}"):
        assert machine(f"{url}&mode=read&trust={trusted}").call()[0] == value
    assert machine(url + "&mode=read").call()[0] == value, "who trusts everybody reads it too"


@pytest.mark.parametrize("signer", [ONE, None], ids=["another", "nobody"])
def test_what_another_wrote_does_not_count_and_is_replaced(
    machine: Make, url: str, key: Setting, signer: object
) -> None:
    key(ONE.secret if signer is ONE else "")
    wrong = sent(machine, url)
    key(OTHER.secret)
    trusting = machine(f"{url}&trust={OTHER.public}")
    value, outcome = trusting.call()
    assert (outcome.reason, value == wrong) == (Reason.FIRST_RUN, False)
    assert trusting.faults == [Fault.REMOTE_UNTRUSTED.value]
    trusting.push()
    key("")
    assert machine(f"{url}&mode=read&trust={OTHER.public}").call()[0] == value


def test_no_changed_byte_of_a_signed_row_counts(machine: Make, url: str, site: Site, key: Setting) -> None:
    key(ONE.secret)
    sent(machine, f"{url}&trust={ONE.public}")
    trust = Trust(ONE.public, {}, is_written=False)
    for row in site.files.values():
        length = int.from_bytes(row[48:50], "little")
        signature, body = row[50 : 50 + length], row[50 + length :]
        assert trust.why_untrusted(signature, row[:16] + body) == ""
        for at in range(0, len(body), 97):
            changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            assert "wrong signature" in trust.why_untrusted(signature, row[:16] + changed)
        for at in range(length):
            changed = signature[:at] + bytes([signature[at] ^ 1]) + signature[at + 1 :]
            assert trust.why_untrusted(changed, row[:16] + body)
        for other in (b"", b"ci-1:", b"ci-1:AAAA", b"\xff", signature + b"=", b"hmac:" + signature[5:]):
            assert trust.why_untrusted(other, row[:16] + body)


def test_a_signed_row_counts_in_its_own_place_alone(machine: Make, url: str, site: Site, key: Setting) -> None:
    key(ONE.secret)
    one = machine(f"{url}&trust={ONE.public}")
    one.call(3)
    one.push()
    first = dict(site.files)
    one.call(4)
    one.push()
    (leaf,) = [path for path in first if b'"entry"' in first[path]]
    for path in set(site.files) - set(first):
        site.files[path] = first[leaf]
    key("")
    reader = machine(f"{url}&mode=read&trust={ONE.public}")
    assert reader.call(4)[1].reason is Reason.FIRST_RUN
    assert reader.faults == [Fault.REMOTE_CORRUPT.value]


def test_no_variable_that_is_not_set_trusts_everybody(url: str) -> None:
    with pytest.raises(ConfigError, match="trust holds no NAME:KEY"):
        parse(f"{url}&trust=", "default", {})


#: Of the remote that a result comes from and of an earlier one that has none, whom each trusts; whether it goes there.
PASSED_ON = {
    "nobody signs": ("", "", "", True),
    "everybody, signed for who trusts the key": ("", "", ONE.secret, False),
    "everybody, signed for who says so": ("", f"&trust={ONE.public}", ONE.secret, False),
    "another key": (f"&mode=read&trust={OTHER.public}", f"&trust={ONE.public}", ONE.secret, False),
    "more keys": (f"&mode=read&trust={ONE.public},{OTHER.public}", f"&trust={ONE.public}", ONE.secret, False),
    "one of the keys": (f"&mode=read&trust={OTHER.public}", f"&trust={ONE.public},{OTHER.public}", ONE.secret, True),
    "the same key": (f"&trust={ONE.public}", f"&trust={ONE.public}", ONE.secret, True),
    "the own key": (f"&trust={ONE.public}", "", ONE.secret, True),
    "a key, and nobody signs": (f"&mode=read&trust={OTHER.public}", "", "", True),
}


@pytest.mark.parametrize(("source", "target", "secret", "is_passed_on"), PASSED_ON.values(), ids=PASSED_ON)
def test_nobody_signs_what_those_said_whom_others_do_not_trust(
    machine: Make, url: str, tmp_path: Path, key: Setting, source: str, target: str, secret: str, is_passed_on: bool
) -> None:
    key(OTHER.secret if OTHER.public in source else secret)
    value = sent(machine, url)
    key(secret)
    between = machine(f"file://{tmp_path}/near?timeout=60{target} {url}{source}")
    assert between.call()[0] == value
    assert [bool(each.put and each.put.is_new) for each in between.push()] == [True] * is_passed_on
    assert between.faults == [Fault.REMOTE_SKIPPED.value] * (not is_passed_on)


def test_a_team_shares_a_secret(machine: Make, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_REMOTE_SECRET", SECRET)
    value = sent(machine, url + "&trust=hmac")
    assert machine(url + "&trust=hmac").call()[0] == value
    monkeypatch.setenv("CACHEC_REMOTE_SECRET", SECRET.upper())
    other: Machine = machine(url + "&trust=hmac")
    assert other.call()[0] != value
    assert other.faults == [Fault.REMOTE_UNTRUSTED.value]


def test_a_key_may_be_in_a_file(machine: Make, url: str, key: Setting, tmp_path: object) -> None:
    file = f"{tmp_path}/key"
    with open(file, "w") as opened:
        opened.write(ONE.secret + "\n")
    key(file)
    sent(machine, f"{url}&trust={ONE.public}")


@pytest.mark.parametrize(
    ("trusted", "environ", "words"),
    [
        ("ci-1", {}, "keygen"),
        ("ci-1:AAAA", {}, "keygen"),
        ("hmac", {}, "CACHEC_REMOTE_SECRET"),
        ("hmac", {"CACHEC_REMOTE_SECRET": "short"}, "CACHEC_REMOTE_SECRET"),
        ("", {}, "keygen"),
        (",", {}, "keygen"),
        (f"{ONE.public},", {}, "keygen"),
        (ONE.public, {}, "mode=read"),
        (ONE.public, {"CACHEC_REMOTE_KEY": OTHER.secret}, "none of those that are trusted"),
        (ONE.public, {"CACHEC_REMOTE_KEY": "ci-1:c2VjcmV0"}, "keygen"),
        (None, {"CACHEC_REMOTE_KEY": "/none/key"}, "can't be read"),
    ],
    ids=range(11),  # keys are made anew in each process
)
def test_what_can_not_be_trusted_is_told(trusted: str | None, environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        Trust(trusted, environ, is_written=True)
    assert "c2VjcmV0" not in str(raised.value)


def test_a_fault_names_the_remote_and_the_stage(machine: Make, site: Site, key: Setting) -> None:
    at = site.url.replace("//", "//me:p4ss@") + "?timeout=60"
    sent(machine, at)
    one = machine(f"{at}&mode=read&trust={ONE.public}")
    assert one.call()[1].reason is Reason.FIRST_RUN
    (path,) = day_files(one.store)
    (detail,) = [
        each["detail"]
        for each in map(json.loads, Path(path).read_text().splitlines())
        if each.get("fault") and "reason" not in each
    ]
    assert re.fullmatch(rf"{site.url}: row [0-9a-f]{{12}} is not signed \(stage model.build\)", detail)


def test_a_reader_without_the_package_is_told_at_once(machine: Make, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'cachec\[sign\]'"):
        parse(f"{url}&mode=read&trust={ONE.public}", "default", {})
    one = machine(f"{url}&mode=read&trust={ONE.public}")
    with pytest.raises(ConfigError, match=r"cachec\[sign\]"):
        one.call()
    shown = CliRunner().invoke(main, ["--dir", str(one.store), "remote", "check", one.url])
    assert (shown.exit_code, "cachec[sign]" in shown.output) == (2, True)
    assert parse(f"{url}&mode=read&trust=hmac", "default", {"CACHEC_REMOTE_SECRET": SECRET}).trust.is_limited


def test_keygen_prints_what_fits_together(machine: Make, url: str, key: Setting) -> None:
    result = CliRunner().invoke(main, ["remote", "keygen", "team.1", "--json"])
    pair = json.loads(result.stdout)
    assert result.exit_code == 0
    key(pair["secret"])
    sent(machine, f"{url}&trust={pair['public']}")
    shown = CliRunner().invoke(main, ["remote", "keygen", "team.1"]).stdout
    assert "CACHEC_REMOTE_KEY=team.1:" in shown
    assert "trust=team.1:" in shown
    assert CliRunner().invoke(main, ["remote", "keygen", "a:b"]).exit_code == 2


def test_keygen_writes_files_once(tmp_path: Path, machine: Make, url: str, key: Setting) -> None:
    secret, public = tmp_path / "key", tmp_path / "key.pub"
    result = CliRunner().invoke(main, ["remote", "keygen", "team.1", "-o", str(secret), "--json"])
    told = json.loads(result.stdout)
    assert told == {"secret": "", "public": public.read_text().strip(), "path": str(secret)}
    assert secret.read_text().strip() not in result.output
    assert (secret.stat().st_mode & 0o777, public.stat().st_mode & 0o022) == (0o600, 0)
    key(str(secret))
    sent(machine, f"{url}&trust={told['public']}")
    before = secret.read_text()
    again = CliRunner().invoke(main, ["remote", "keygen", "team.1", "-o", str(secret)])
    assert (again.exit_code, secret.read_text()) == (2, before)
    assert before.strip() not in again.output


def test_without_signatures_their_package_is_not_imported() -> None:
    code = (
        "import sys\nfrom cachec.remote.urls import parse\nparse('http://host/x', 'default', {})\n"
        "sys.modules['cryptography'] = None\n"
        f"try:\n    parse('http://host/x', 'default', {{'CACHEC_REMOTE_KEY': {ONE.secret!r}}})\n"
        "except Exception as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cachec[sign]" in done.stdout
