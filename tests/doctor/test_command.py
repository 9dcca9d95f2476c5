"""``cachec doctor`` as a command."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from cachec.cli import main

from .conftest import KEY, Patient


def run(patient: Patient, *args: str) -> Result:
    result = CliRunner().invoke(main, ["--dir", str(patient.folder), *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_exit_codes_and_fix(patient: Patient) -> None:
    said = run(patient, "doctor")
    assert (said.exit_code, said.output.splitlines()[-1]) == (0, "nothing is wrong")
    patient.write(f"locks/{KEY[:2]}/{KEY}")
    (patient.folder / "log").chmod(0o777)
    patient.patch.setenv("CACHEC_MODE", "off")
    said = run(patient, "doctor", "--json")
    document = json.loads(said.stdout)
    assert said.exit_code == 1
    assert [(each["check"], each["safe"]) for each in document["findings"]] == [
        ("mode", False),
        ("mode", True),
        ("locks", True),
    ]
    said = run(patient, "doctor", "--fix", "--json")
    document = json.loads(said.stdout)
    assert said.exit_code == 1
    assert [each["check"] for each in document["fixed"]] == ["mode", "locks"]
    assert [each["check"] for each in document["findings"]] == ["mode"]
    patient.patch.delenv("CACHEC_MODE")
    assert run(patient, "doctor", "--fix").exit_code == 0


def test_what_can_not_be_looked_at(patient: Patient) -> None:
    patient.patch.setenv("CACHEC_MODE", "of")
    said = run(patient, "doctor")
    assert said.exit_code == 2
    assert "CACHEC_MODE" in said.stderr


def test_it_fits_a_terminal(patient: Patient) -> None:
    patient.patch.setenv("COLUMNS", "80")
    patient.write(f"locks/{KEY[:2]}/{KEY}")
    (patient.folder / "index" / "cache.db").chmod(0o666)
    said = run(patient, "doctor")
    paths = [line for line in said.output.splitlines() if str(patient.folder) not in line]
    assert paths
    assert max(map(len, paths)) <= 80
