import cachec
import lexer
import parser

cache = cachec.Cache()


@cache.stage
def tokenize(text):
    return list(lexer.tokens(text))


@cache.stage
def tree(text):
    return parser.parse(text)


if __name__ == "__main__":
    for text in ("ab + 2*c", "X - 1"):
        print("RESULT", tokenize(text))
        print("RESULT", tree(text))
