import re

TOKENS = [
    ("number", r"\d+"),
    ("name", r"[a-z]+"),
    ("op", r"[-+*/()]"),
    ("space", r"\s+"),
    ("error", r"."),
]
LEXER = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in TOKENS), re.VERBOSE)


def tokens(text):
    for match in LEXER.finditer(text):
        if match.lastgroup != "space":
            yield match.lastgroup, match.group()
