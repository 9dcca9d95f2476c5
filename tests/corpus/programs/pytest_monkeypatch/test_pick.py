import pick


def test_plain():
    result = pick.pick()
    print("RESULT", result)
    assert result[0] == "dev:cpu"


def test_prefix(monkeypatch):
    monkeypatch.setattr(pick, "PREFIX", "x:")
    result = pick.pick()
    print("RESULT", result)
    assert result[0] == "x:cpu"


def test_helper(monkeypatch):
    monkeypatch.setattr(pick, "available", lambda: ["tpu"])
    print("RESULT", pick.pick())


def test_variable(monkeypatch):
    monkeypatch.setenv("PICK_LIMIT", "1")
    print("RESULT", pick.pick())


def test_plain_again():
    assert len(pick.pick()) >= 2
