import cachec

cache = cachec.Cache()


@cache.stage
def check(numbers, messages):
    for number in numbers:
        if number % 2:
            messages.append(f"{number} is odd")
    return len(numbers)


def main():
    messages = []
    count = check([1, 2, 3], messages)
    print("RESULT", count, messages)


main()
