"""Variables of the environment as parts."""

from __future__ import annotations

import pytest

from cachec.errors import UsageError
from cachec.key.tools.environment import LOCALE_NAME, environment_parts


def digest(name: str, environ: dict[str, str]) -> str:
    (part,) = environment_parts([name], environ)
    return part.digest


def test_unset_empty_and_set_all_differ() -> None:
    assert len({digest("A", {}), digest("A", {"A": ""}), digest("A", {"A": "1"}), digest("A", {"A": "2"})}) == 4


def test_other_variables_do_not_count() -> None:
    assert environment_parts(["A"], {"A": "1", "B": "2"}) == environment_parts(["A"], {"A": "1", "B": "3"})


def test_order_and_repetition_do_not_count() -> None:
    environ = {"A": "1", "B": "2"}
    parts = environment_parts(["B", "A", "B"], environ)
    assert parts == environment_parts(["A", "B"], environ)
    assert [part.label for part in parts] == ["env/A", "env/B"]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *((name, True) for name in ("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES")),
        *((name, True) for name in ("LC_MONETARY", "LC_NUMERIC", "LC_TIME", "LC_ADDRESS", "LC_IDENTIFICATION")),
        *((name, True) for name in ("LC_MEASUREMENT", "LC_NAME", "LC_PAPER", "LC_TELEPHONE")),
        *((name, False) for name in ("LC_OTHER", "LANGUAGES", "PATH")),
    ],
)
def test_the_locale_is_all_of_its_variables(name: str, counts: bool) -> None:
    assert (digest(LOCALE_NAME, {name: "a"}) != digest(LOCALE_NAME, {name: "b"})) == counts


@pytest.mark.parametrize("name", ["HF_TOKEN", "MY_SECRET", "db_password", "API_KEY", "ROOT_PASSWD", "AWS_CREDENTIALS"])
def test_secrets_count_and_are_not_shown(name: str) -> None:
    (one,) = environment_parts([name], {name: "hunter2"})
    (two,) = environment_parts([name], {name: "hunter3"})
    assert one.digest != two.digest
    assert "hunter" not in one.detail


def test_plain_values_are_shown_in_short() -> None:
    assert environment_parts(["A"], {"A": "fast"})[0].detail == "'fast'"
    assert environment_parts(["A"], {})[0].detail == "not set"
    assert len(environment_parts(["A"], {"A": "x" * 10_000})[0].detail) < 200


def test_long_values_that_differ_at_the_end_differ() -> None:
    assert digest("A", {"A": "x" * 10_000}) != digest("A", {"A": "x" * 10_000 + "y"})


def test_bytes_that_are_no_text_count() -> None:
    assert digest("A", {"A": "\udcff"}) != digest("A", {"A": "\udcfe"})


@pytest.mark.parametrize("names", [[""], ["A=B"], ["A\0"], "PATH"])
def test_what_is_no_name_is_refused(names: object) -> None:
    with pytest.raises(UsageError):
        environment_parts(names, {})  # type: ignore[arg-type]
