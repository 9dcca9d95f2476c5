import asyncio

import cachec

cache = cachec.Cache()


async def numbers(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i * i


async def total(n, limit, offset):
    async with limit:
        return offset + sum([value async for value in numbers(n)])


async def run(sizes):
    limit, offset = asyncio.Semaphore(2), 10
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(total(n, limit, offset)) for n in sizes]
    return [task.result() for task in tasks]


@cache.stage
def totals(sizes):
    return asyncio.run(run(sizes))


if __name__ == "__main__":
    print("RESULT", totals([1, 2, 3, 4]))
