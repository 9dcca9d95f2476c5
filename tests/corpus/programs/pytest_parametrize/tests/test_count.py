import cachec
import pytest
from counting import count

cache = cachec.Cache()
LETTERS = "abc"


@cache.stage
def counts(path) -> dict[str, int]:
    print("counting")
    text = path.read_text()
    return {letter: count(text, letter) for letter in LETTERS}


@pytest.mark.parametrize("text", ["aa", "b" * 3, "cab"])
def test_counts(tmp_path, capsys, text):
    path = tmp_path / "text"
    path.write_text(text)
    result = counts(path)
    capsys.readouterr()
    with capsys.disabled():
        print("\nRESULT", text, result)
    assert sum(result.values()) >= len(text) - text.count("c")
