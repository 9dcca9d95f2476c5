import cachec

fast = cachec.Cache(namespace="fast")
slow = cachec.Cache(namespace="slow")


def shared(x):
    return x * 7


@fast.stage
def first(x):
    return shared(x)


@slow.stage
def second(x):
    return shared(x) + 1


if __name__ == "__main__":
    value, outcome = fast.call(first, 3)
    print("outcome:", outcome.reason.value)
    print("RESULT", value)
    print("RESULT", second(3), second(first(3)))
