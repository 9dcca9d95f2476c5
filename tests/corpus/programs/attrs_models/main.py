import attrs

import cachec
from spec import Buffer, Device

cache = cachec.Cache()


@cache.stage
def layout(buffers: list[Buffer]) -> dict[str, int]:
    offset, offsets = 0, {}
    for buffer in buffers:
        offsets[f"{buffer.device.name}:{buffer.name}"] = offset
        offset += buffer.padded()
    return offsets


@cache.stage
def describe(device: Device) -> str:
    return repr(attrs.evolve(device, name=device.name + "0"))


if __name__ == "__main__":
    gpu = Device("GPU", align=256)
    print("RESULT", layout([Buffer("a", 10), Buffer("b", 300, gpu), Buffer("c", 20)]))
    print("RESULT", describe(gpu), describe(Device("npu")))
