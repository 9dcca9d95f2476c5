from lexer import tokens

BINDING = {"+": 10, "-": 10, "*": 20, "/": 20}


def parse(text):
    stream = list(tokens(text)) + [("end", "")]

    def expression(limit=0):
        _, left = stream.pop(0)
        while BINDING.get(stream[0][1], 0) > limit:
            _, op = stream.pop(0)
            left = (op, left, expression(BINDING[op]))
        return left

    return expression()
