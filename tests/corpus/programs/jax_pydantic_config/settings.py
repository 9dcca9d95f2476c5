from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator


class Layer(BaseModel):
    kind: Literal["dense", "norm"]
    units: Annotated[int, Field(gt=0)] = 4


class Settings(BaseModel):
    layers: list[Layer]
    dtype: str = "float32"
    seed: int = 0

    @field_validator("dtype")
    @classmethod
    def known(cls, value):
        if value not in ("float32", "bfloat16"):
            raise ValueError(f"dtype {value}")
        return value
