from dataclasses import dataclass

import cachec

cache = cachec.Cache()


@dataclass(frozen=True)
class Compiler:
    target: str
    width: int = 4

    SUFFIX = "mlir"

    @staticmethod
    @cache.stage
    def parse(text):
        return text.split(";")

    @cache.stage
    def emit(self, ops):
        return [f"{self.target}.{op}.{self.SUFFIX}<{self.width}>" for op in ops]

    def compile(self, text):
        return self.emit(self.parse(text))
