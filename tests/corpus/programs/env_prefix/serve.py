import os
from dataclasses import dataclass, fields

import cachec

cache = cachec.Cache()


@dataclass
class Settings:
    name: str = "model"
    workers: int = 1
    batch: int = 8

    @classmethod
    def from_environ(cls, prefix="SERVE_"):
        given = {name.removeprefix(prefix).lower(): value for name, value in os.environ.items() if name.startswith(prefix)}
        types = {field.name: field.type for field in fields(cls)}
        return cls(**{name: types[name](value) for name, value in given.items() if name in types})


@cache.stage
def shard(settings: Settings, requests: int) -> dict[str, list[int]]:
    step = settings.workers * settings.batch
    return {f"{settings.name}-{worker}": list(range(worker, requests, step)) for worker in range(settings.workers)}


@cache.stage
def banner() -> str:
    settings = Settings.from_environ()
    return f"{settings.name} x{settings.workers} b{settings.batch}"


print("RESULT", shard(Settings.from_environ(), 100))
print("RESULT", banner())
