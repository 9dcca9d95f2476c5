class CompileError(Exception):
    pass


class OutOfMemory(CompileError):
    def __init__(self, tile, needed):
        super().__init__(f"tile {tile} needs {needed} KiB")
        self.tile, self.needed = tile, needed
