from mini import lower


def test_lower(program):
    lines = lower(program)
    print("RESULT", lines)
    assert len(lines) == len(program)


def test_short(short):
    print("RESULT", lower(short))
    assert lower(short) == ["%0 = mulf"]
