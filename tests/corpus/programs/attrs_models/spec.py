import attrs


@attrs.frozen
class Device:
    name: str = attrs.field(converter=str.lower)
    align: int = 16


@attrs.define
class Buffer:
    name: str
    size: int = attrs.field(validator=attrs.validators.gt(0))
    device: Device = attrs.field(factory=lambda: Device("CPU"))

    def padded(self):
        align = self.device.align
        return -(-self.size // align) * align
