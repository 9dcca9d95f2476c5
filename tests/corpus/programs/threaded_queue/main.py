import queue
import threading

import cachec

cache = cachec.Cache()
WORKERS = 3


def simulate(cost):
    while cost < 50:
        cost = step(cost)
    return cost


def step(cost):
    return cost * 3 + 1


@cache.stage
def simulate_all(ops):
    jobs, results, lock = queue.Queue(), {}, threading.Lock()
    for op in ops:
        jobs.put(op)

    def work():
        while True:
            try:
                name, cost = jobs.get_nowait()
            except queue.Empty:
                return
            value = simulate(cost)
            with lock:
                results[name] = value

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results.items())


print("RESULT", simulate_all([("conv", 4), ("relu", 1), ("pool", 7)]))
