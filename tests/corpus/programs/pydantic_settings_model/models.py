from pydantic import BaseModel, Field, field_validator


class Replica(BaseModel):
    device: str = "cpu"
    threads: int = 2

    @field_validator("device")
    @classmethod
    def lower(cls, value):
        return value.lower()


class Deployment(BaseModel):
    name: str
    replicas: list[Replica] = Field(default_factory=lambda: [Replica()])
