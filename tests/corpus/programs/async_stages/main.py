import asyncio

import cachec
from client import Client

cache = cachec.Cache()


@cache.stage
async def ask(prompt: str, limit: int = 12) -> str:
    client = Client("replies.json")
    return await client.ask(prompt, limit)


@cache.stage
async def summary(prompts: list[str]) -> dict[str, int]:
    answers = await asyncio.gather(*(ask(prompt) for prompt in prompts))
    return {prompt: len(answer.split()) for prompt, answer in zip(prompts, answers)}


async def main():
    first, second = await asyncio.gather(ask("what is a grid"), ask("what is a warp"))
    print("RESULT", repr(first), repr(second))
    print("RESULT", await summary(["what is a grid", "what is a warp"]))


if __name__ == "__main__":
    asyncio.run(main())
