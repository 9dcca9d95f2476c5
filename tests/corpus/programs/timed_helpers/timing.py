import functools
import time

SPENT = {}


def check(result):
    if result is None:
        raise ValueError("nothing was returned")
    return result


def timed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        start = time.perf_counter()
        try:
            result = function(*args, **kwargs)
            return check(result)
        finally:
            elapsed = time.perf_counter() - start
            print(f"{function.__name__}: {elapsed:.6f} s")

    return wrapper


def retry(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            for attempt in range(times):
                try:
                    return function(*args, attempt=attempt)
                except RuntimeError:
                    continue
            return f"gave up after {times}"

        return wrapper

    return decorate
